"""Where a re-weighted basis starts: functions fixed for kernel and data, sums of just these."""

import pytest
import torch

from gpx.bases import Proposal
from gpx.bases.sufficient_statistics import sufficient_statistics
from gpx.kernels import RBF
from gpx.methods.reweighted.basis import reweighted_basis
from gpx.methods.reweighted.start import fix_functions

NOISE = torch.tensor(0.05, dtype=torch.float64)


def data(n=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, 3.0 * (2.0 * x).sin().sum(1) + 0.2 * noise


def start(name, x, y, *, noise_first=False, seed=1, **options):
    kernel = RBF(2, lengthscale=0.8, outputscale=1.3)
    basis = reweighted_basis(name, kernel, 2, 20, num_data=60, **options).double()
    found = fix_functions(
        basis,
        x,
        y,
        NOISE,
        noise_first=noise_first,
        sweeps=0,
        generator=torch.Generator().manual_seed(seed),
    )
    return basis, found


def log_density(basis, x, y, noise):
    """log N(y; 0, Phi Phi^T + s I) in function space, with the features as they are now."""
    with torch.no_grad():
        phi = basis(x)
    matrix = phi @ phi.mT + noise * torch.eye(len(y), dtype=torch.float64)
    zero = torch.zeros_like(y)
    return torch.distributions.MultivariateNormal(zero, matrix).log_prob(y)


@pytest.mark.parametrize("noise_first", [False, True])
@pytest.mark.parametrize("name", ["grief", "random_fourier", "dictionary", "importance_weighted"])
def test_sums_are_those_of_the_functions_as_they_are_left(name, noise_first):
    x, y = data()
    basis, found = start(name, x, y, noise_first=noise_first)
    want = sufficient_statistics(basis, x, y)
    torch.testing.assert_close(found.statistics.gram, want.gram, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.statistics.projected, want.projected, rtol=1e-9, atol=1e-9)
    assert float(found.statistics.squared) == pytest.approx(float(y @ y))
    assert found.statistics.num_data == 60
    moved = name == "grief" and noise_first
    assert (float(found.noise) != float(NOISE)) == moved


def test_outputscale_and_noise_of_a_grid_have_the_largest_evidence():
    x, y = data()
    basis, found = start("grief", x, y, noise_first=True)
    best = log_density(basis, x, y, found.noise)
    scale = basis.factors.outputscale.clone()
    for factor, noise in ((1.1, 1.0), (0.9, 1.0), (1.0, 1.1), (1.0, 0.9)):
        basis.factors.set_outputscale(factor * scale)
        assert float(log_density(basis, x, y, noise * found.noise)) < float(best)


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
    basis = reweighted_basis(
        "importance_weighted", RBF(2, 0.8), 2, 20, proposal=Proposal(lengthscale=1.0)
    ).double()
    basis.kernel.lengthscale = torch.tensor([2.0, 0.3], dtype=torch.float64)
    assert float(basis.weights().effective) < 9.0
    fix_functions(
        basis, x, y, NOISE, noise_first=True, sweeps=0, generator=torch.Generator().manual_seed(1)
    )
    assert float(basis.weights().effective) == pytest.approx(10.0)
    assert float(basis.weights().log_variances.detach().abs().max()) < 1e-12
