"""Where a re-weighted basis starts: functions fixed for kernel and data, sums of just these."""

import pytest
import torch

from gpx.bases import (
    GridFeatures,
    ImportanceWeightedFourier,
    Proposal,
    RandomFourier,
    TrainingPoints,
)
from gpx.bases.fixed_functions import fix_functions, sufficient_statistics
from gpx.bases.sufficient_statistics import BLOCK_BYTES
from gpx.kernels import RBF, AxisProduct

KINDS = {
    "grief": lambda kernel: GridFeatures(kernel, 20, 2, noise_first=False),
    "fitted": lambda kernel: GridFeatures(kernel, 20, 2, noise_first=True),
    "axes": lambda kernel: GridFeatures(AxisProduct("matern52", 2, None, 0.8, 1.3), 20, 2),
    "fixed": lambda kernel: GridFeatures(RBF(2, 0.8, outputscale=None), 20, 2),
    "fixed_axes": lambda kernel: GridFeatures(
        AxisProduct("matern52", 2, None, 0.8, outputscale=None), 20, 2
    ),
    "random_fourier": lambda kernel: RandomFourier(kernel, 20),
    "dictionary": lambda kernel: TrainingPoints(kernel, 20, 2, 60),
    "importance_weighted": lambda kernel: ImportanceWeightedFourier(kernel, 20, 2),
}

NOISE = torch.tensor(0.05, dtype=torch.float64)


def data(n=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, 3.0 * (2.0 * x).sin().sum(1) + 0.2 * noise


def start(name, x, y, *, seed=1):
    basis = KINDS[name](RBF(2, lengthscale=0.8, outputscale=1.3)).double()
    found = fix_functions(basis, x, y, NOISE, generator=torch.Generator().manual_seed(seed))
    return basis, found


def log_density(basis, x, y, noise):
    """log N(y; 0, Phi Phi^T + s I) in function space, with the features as they are now."""
    with torch.no_grad():
        phi = basis(x)
    matrix = phi @ phi.mT + noise * torch.eye(len(y), dtype=torch.float64)
    zero = torch.zeros_like(y)
    return torch.distributions.MultivariateNormal(zero, matrix).log_prob(y)


@pytest.mark.parametrize("name", KINDS)
def test_sums_are_those_of_the_functions_as_they_are_left(name):
    x, y = data()
    basis, found = start(name, x, y)
    want = sufficient_statistics(basis, x, y)
    torch.testing.assert_close(found.statistics.gram, want.gram, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.statistics.projected, want.projected, rtol=1e-9, atol=1e-9)
    assert float(found.statistics.squared) == pytest.approx(float(y @ y))
    assert found.statistics.num_data == 60
    assert (float(found.noise) != float(NOISE)) == (name in FITTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_has_room_for_its_features_in_float64(dtype, monkeypatch):
    """In it sums are taken, whatever the dtype of the features."""
    monkeypatch.setitem(BLOCK_BYTES, "cpu", 8 * 20 * 15)
    x, y = data()
    basis, seen = RandomFourier(RBF(2), 20).to(dtype), []
    basis.register_forward_hook(lambda module, given, features: seen.append(features.numel()))
    sufficient_statistics(basis, x.to(dtype), y.to(dtype))
    assert seen == [20 * 15] * 4


FITTED = ("fitted", "axes", "fixed", "fixed_axes")


@pytest.mark.parametrize("name", FITTED)
def test_outputscale_and_noise_of_a_grid_have_the_largest_evidence(name):
    """The noise that of the outputscale there is, where it is fixed."""
    x, y = data()
    basis, found = start(name, x, y)
    best = log_density(basis, x, y, found.noise)
    scale = basis.factors.outputscale.clone()
    assert (float(scale.detach()) == 1.0) == ("fixed" in name)
    others = () if "fixed" in name else ((1.1, 1.0), (0.9, 1.0))
    for factor, noise in (*others, (1.0, 1.1), (1.0, 0.9)):
        basis.factors.set_outputscale(factor * scale)
        assert float(log_density(basis, x, y, noise * found.noise)) < float(best)


def test_a_noise_of_one_leaves_a_fixed_outputscale_alone():
    x, y = data()
    basis, found = start("fixed", x, y)
    factor, noise, _ = basis.fit_scales(found.statistics, unit_noise=True)
    assert (float(factor), float(noise)) == (1.0, 1.0)


class WithoutNoise(GridFeatures):
    """A basis that chooses its outputscale together with a noise variance of its own."""

    def fit_scales(self, statistics, *, unit_noise=False):
        return super().fit_scales(statistics, unit_noise=unit_noise)


class AnyKeyword(GridFeatures):
    def fit_scales(self, statistics, **options):
        self.options = options
        return super().fit_scales(statistics, **options)


def test_a_fixed_noise_is_kept_where_a_basis_does_not_ask_for_it():
    x, y = data()
    generator = torch.Generator()
    basis = WithoutNoise(RBF(2, 0.8), 20, 2, noise_first=True).double()
    found = fix_functions(basis, x, y, NOISE, generator=generator, fixed_noise=True)
    assert float(found.noise) == float(NOISE)
    assert float(fix_functions(basis, x, y, NOISE, generator=generator).noise) != float(NOISE)


def test_a_fixed_noise_is_given_to_a_basis_that_takes_any_keyword():
    x, y = data()
    basis = AnyKeyword(RBF(2, 0.8), 20, 2, noise_first=True).double()
    fix_functions(basis, x, y, NOISE, generator=torch.Generator(), fixed_noise=True)
    assert basis.options == {"unit_noise": False, "noise": NOISE}


def test_centres_of_a_dictionary_are_rows_of_the_data():
    x, y = data()
    basis, _ = start("dictionary", x, y)
    rows = [int(r) for r in torch.cdist(basis.centres, x).argmin(1)]
    assert torch.equal(x[rows], basis.centres)
    assert rows == sorted(set(rows))
    assert not torch.equal(start("dictionary", x, y, seed=2)[0].centres, basis.centres)


def test_importance_weights_start_at_the_kernel_as_it_is():
    """Frequencies are drawn for its lengthscales now, not for those at which it was built."""
    x, y = data()
    proposal = Proposal(lengthscale=1.0)
    basis = ImportanceWeightedFourier(RBF(2, 0.8), 20, 2, proposal=proposal).double()
    basis.kernel.lengthscale = torch.tensor([2.0, 0.3], dtype=torch.float64)
    assert float(basis.weights().effective) < 9.0
    fix_functions(basis, x, y, NOISE, generator=torch.Generator().manual_seed(1))
    assert float(basis.weights().effective) == pytest.approx(10.0)
    assert float(basis.weights().log_variances.detach().abs().max()) < 1e-12
