"""Halton points, and the Gauss-Hermite rule against moments and the kernel."""

import itertools

import pytest
import torch

from gpx.bases import GaussHermiteFourier
from gpx.bases.fourier.quadrature_features import halton
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32

pytestmark = pytest.mark.usefixtures("float64_by_default")


def test_halton_points_are_the_radical_inverses():
    want = [[1 / 2, 1 / 3], [1 / 4, 2 / 3], [3 / 4, 1 / 9], [1 / 8, 4 / 9]]
    torch.testing.assert_close(halton(torch.arange(4), 2), torch.tensor(want))


def test_gauss_hermite_integrates_polynomials_of_the_frequency():
    kernel = RBF(2, (0.5, 2.0), 1.0)
    basis = GaussHermiteFourier(kernel, 36)
    indices = torch.arange(18)
    omega = basis.frequencies(indices, 2, torch.float64).detach() * torch.tensor([0.5, 2.0])
    weights = basis.frequency_weights(indices)
    moments = {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0, 4: 3.0, 6: 15.0, 8: 105.0, 10: 945.0}
    for a, b in itertools.product(moments, repeat=2):
        if (a + b) % 2:
            continue  # zero by symmetry of the pair (w, -w), of which one is kept
        value = (weights * omega[:, 0] ** a * omega[:, 1] ** b).sum()
        assert float(value) == pytest.approx(moments[a] * moments[b], rel=1e-9, abs=1e-9)


def test_gauss_hermite_is_exact_to_rounding_at_short_lags():
    kernel = RBF(2, 1.0, 1.3)
    x = 0.4 * torch.randn(10, 2, generator=torch.Generator().manual_seed(1))
    features = GaussHermiteFourier(kernel, 24**2)(x).detach()
    error = (features @ features.T - kernel.evaluate(x).detach()).abs().max()
    assert float(error) < 1e-10


@pytest.mark.parametrize(
    ("kernel", "m"), [(Matern32(2), 16), (RBF(), 16), (RBF(2), 15), (RBF(2), 9), (RBF(1), 66)]
)
def test_gauss_hermite_says_what_it_needs(kernel, m):
    with pytest.raises(ConfigError, match="Gauss-Hermite"):
        GaussHermiteFourier(kernel, m)
