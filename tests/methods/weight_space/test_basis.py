"""The functions of QSGP by name: exact inference with each, and which options fit which."""

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.bases.fourier.spread import automatic_spread
from gpx.bases.fourier.variants import FOURIER, RANDOM
from gpx.errors import ConfigError
from gpx.kernels import RBF, Cosine, Matern32, Scale, SpectralMixture
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.basis import BASES, weight_space_basis
from gpx.models import QSGP


@pytest.mark.parametrize("name", FOURIER)
def test_qsgp_takes_any_of_them_by_name(name):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.sin(x[:, 0])
    model = QSGP(
        RBF(2, 1.0, 1.0),
        Zero(),
        Gaussian(0.01),
        num_basis=144,
        block_frequencies=9,
        warm_start_size=144,
        basis=name,
    ).double()
    model.initialise(x, y, generator=torch.Generator())
    phi = model.basis(x).detach()
    k = phi @ phi.T
    want = k @ torch.linalg.solve(k + 0.01 * torch.eye(40, dtype=torch.float64), y)
    torch.testing.assert_close(model.condition(x, y).predict(x).mean, want)


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ConfigError, match=", ".join(BASES)):
        QSGP(RBF(2), Zero(), Gaussian(), basis="wavelet")


def test_a_prime_number_of_frequencies_is_refused():
    with pytest.raises(
        ConfigError, match="blocks of a single frequency, because num_basis / 2 = 47"
    ):
        weight_space_basis("random_fourier", RBF(2), 94, block_frequencies=40)


def test_only_random_frequencies_are_spread():
    for name in BASES:
        found = weight_space_basis(name, RBF(2), 64, spread="auto")
        if name in RANDOM:
            assert found.spread == automatic_spread(RBF(2))
            assert weight_space_basis(name, RBF(2), 64, spread=(1.0, 2.0)).spread == (1.0, 2.0)
        else:
            with pytest.raises(ConfigError, match=rf"approx\.spread=1\.2 .*={name} has none"):
                weight_space_basis(name, RBF(2), 64, spread=1.2)
            assert torch.equal(found.precision_diagonal(), torch.ones(64))
    assert weight_space_basis("random_fourier", RBF(2), 64).spread == (1.0,)
    with pytest.raises(ConfigError, match="auto or factors"):
        weight_space_basis("random_fourier", RBF(2), 64, spread="wide")
    # frequencies of a spectral mixture have centres: longer normals would be another kernel's
    for kernel in (Cosine(2), SpectralMixture(2, 3), Scale(SpectralMixture(2, 3)), RBF(None)):
        with pytest.raises(ConfigError, match="needs kernel=rbf"):
            weight_space_basis("random_fourier", kernel, 60, spread=1.2)
        RandomFourier(kernel, 60, 0, 10)


def test_a_spread_that_leaves_the_prior_to_few_functions_is_a_warning():
    for spread in (3.0, 100.0):  # few of the right frequencies, and none
        with pytest.warns(UserWarning, match=r"functions carry the prior"):
            weight_space_basis("random_fourier", RBF(8), 2000, spread=spread)
    for kernel in (RBF(8), Matern32(8)):  # warnings are errors
        weight_space_basis("random_fourier", kernel, 2000, spread="auto")
