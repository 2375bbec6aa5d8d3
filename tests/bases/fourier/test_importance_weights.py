"""Fourier features drawn for one kernel that stand for another."""

import math

import pytest
import torch

from gpx.bases import OrthogonalFourier, RandomFourier, importance_weights
from gpx.bases.fixed_functions import sufficient_statistics
from gpx.bases.fourier.importance_weighted import warn_of_few
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern52
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.reweighted.state import reweighted_form
from gpx.models import ExactGP
from gpx.objectives import ExactMLL


def kernel(square, dims=1, outputscale=1.0, kind=RBF):
    return kind(dims, lengthscale=math.sqrt(square), outputscale=outputscale).double()


def approximate(square, seed, dims=1, count=250, normalise=False):
    """k(tau) for tau on a grid along the first input, and the frequencies that count."""
    basis = RandomFourier(kernel(0.1, dims), 2 * count, seed, block_frequencies=50).double()
    tau = torch.linspace(0.0, 3.0, 61, dtype=torch.float64)
    x = torch.zeros(61, dims, dtype=torch.float64)
    x[:, 0] = tau
    with torch.no_grad():
        found = importance_weights(basis, kernel(square, dims), dims, normalise=normalise)
        features = basis(x)
        values = (features * found.log_variances.exp()) @ features[0]
        exact = kernel(square, dims).evaluate(x, x[:1])[:, 0]
    return values, exact, float(found.effective)


def test_for_its_own_kernel_every_weight_is_one_to_the_bit():
    basis = RandomFourier(kernel(0.1, 2), 60, block_frequencies=7).double()
    found = importance_weights(basis, kernel(0.1, 2), 2)
    assert torch.equal(found.log_variances, torch.zeros(60, dtype=torch.float64))
    assert float(found.effective) == pytest.approx(30)


@pytest.mark.parametrize(
    ("square", "error", "spread"), [(0.1, 0.075, 0.0), (0.5, 0.072, 0.05), (2.0, 0.10, 0.09)]
)
def test_errors_at_longer_lengthscales(square, error, spread):
    """Mean of the largest error over 60 seeds; spread of k(0), both to a third."""
    runs = [approximate(square, seed) for seed in range(60)]
    worst = torch.stack([(v - e).abs().max() for v, e, _ in runs]).mean()
    assert float(worst) == pytest.approx(error, rel=0.3)
    origin = torch.stack([v[0] for v, _, _ in runs])
    assert float(origin.std()) == pytest.approx(spread, rel=0.35, abs=1e-12)


def test_effective_frequencies_follow_the_formula():
    """m/2 prod l1 sqrt(2 l2^2 - l1^2) / l2^2: 32 % in 8 inputs where l^2 doubles."""
    found = approximate(0.2, 0, dims=8, count=4000)[2]
    want = 4000 * (math.sqrt(0.1) * math.sqrt(0.3) / 0.2) ** 8
    assert found == pytest.approx(want, rel=0.25)


def test_densities_beyond_the_range_of_numbers():
    """In 400 inputs the density is above 1e308; the ratio of two is an ordinary number."""
    basis = RandomFourier(kernel(400.0, 400), 40).double()
    with torch.no_grad():
        found = importance_weights(basis, kernel(400.0, 400, outputscale=2.0), 400)
    torch.testing.assert_close(found.log_variances, torch.full((40,), math.log(2.0)).double())
    assert float(found.effective) == pytest.approx(20.0)


def test_normalised_weights_are_exact_at_the_origin():
    values, _, _ = approximate(0.5, 1, normalise=True)
    assert float(values[0]) == pytest.approx(1.0, rel=1e-7)  # a float32 outputscale


def test_kernels_of_another_family_and_its_gradient():
    """Matern features re-weighted to a squared exponential: heavier tails cover lighter ones."""
    basis = RandomFourier(kernel(0.3, kind=Matern52), 4000).double()
    other = kernel(0.4, outputscale=1.7)
    found = importance_weights(basis, other, 1)
    x = torch.linspace(0.0, 2.0, 9, dtype=torch.float64)[:, None]
    with torch.no_grad():
        features = basis(x)
        values = (features * found.log_variances.exp()) @ features.mT
        torch.testing.assert_close(values, other.evaluate(x, x), rtol=0, atol=0.12)
    found.log_variances.sum().backward()
    assert all(p.grad is not None for p in other.parameters())


def test_evidence_converges_to_that_of_the_exact_kernel():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(30, 1, generator=generator, dtype=torch.float64)
    y = (6.0 * x[:, 0]).sin() + 0.3 * torch.randn(30, generator=generator, dtype=torch.float64)
    target = kernel(0.25)
    exact = ExactGP(kernel=target, mean=Zero(), likelihood=Gaussian(0.1)).double()
    with torch.no_grad():
        noise = exact.likelihood.noise_variance.log()
        want = float(ExactMLL().evidence(exact, x, y).value)
        errors = []
        for m in (40, 640):
            found = []
            for seed in range(6):
                basis = RandomFourier(kernel(0.1), m, seed).double()
                weights = importance_weights(basis, target, 1).log_variances
                form = reweighted_form(sufficient_statistics(basis, x, y), "diagonal")
                value = form.weights(weights, noise).log_marginal_likelihood()
                found.append(abs(float(value) - want))
            errors.append(sum(found) / len(found))
    assert errors[1] < 0.5 * errors[0]  # a quarter is expected
    assert errors[1] < 1.0


def test_too_few_that_count_are_a_warning_and_other_bases_are_refused():
    basis = RandomFourier(kernel(1.0, 4), 400).double()
    effective = importance_weights(basis, kernel(0.05, 4), 4).effective
    with pytest.warns(UserWarning, match="of 200 frequencies are effective after re-weighting"):
        warn_of_few(effective, 400)
    other = OrthogonalFourier(kernel(1.0, 4), 400).double()
    spread = RandomFourier(kernel(1.0, 4), 400, spread=2.0).double()
    for refused in (other, spread):
        with pytest.raises(ConfigError, match="independently from the spectral density"):
            importance_weights(refused, kernel(1.0, 4), 4)
