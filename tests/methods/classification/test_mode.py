"""Newton's method finds the mode from any start, or raises."""

import pytest
import torch
from class_problems import parts, points

from gpx.errors import DidNotConverge
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Poisson, Softmax
from gpx.methods.classification.mode import find_mode

CASES = {
    "logit": (lambda: Bernoulli("logit"), 2),
    "probit": (lambda: Bernoulli("probit"), 2),
    "softmax": (lambda: Softmax(3), 3),
    "poisson": (Poisson, 3),
}


def problem(name, scale=2.0):
    make, classes = CASES[name]
    likelihood = make().double()
    x, y = points(classes=classes)
    kernel = parts(likelihood, scale)["kernel"].double().evaluate(x).detach()
    return kernel, torch.full_like(y, 0.3), likelihood, y


@pytest.mark.parametrize("scale", [0.1, 2.0, 1e3])
@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_the_gradient_at_the_mode(name, scale):
    """a = d log p / df, where the gradient of the whole objective vanishes."""
    kernel, mean, likelihood, y = problem(name, scale)
    mode = find_mode(kernel, mean, likelihood, y)
    assert mode.report.converged
    assert mode.report.residual < 1e-11
    offset = mean if mode.latent.ndim == 1 else mean[:, None]
    torch.testing.assert_close(mode.latent, offset + kernel @ mode.weights, rtol=1e-12, atol=1e-12)
    f = mode.latent.clone().requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), f)
    torch.testing.assert_close(slope, mode.weights, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(likelihood.log_prob(y, mode.latent).sum(), mode.log_likelihood)


@pytest.mark.parametrize("name", CASES)
def test_it_is_found_from_far_away(name):
    """Starts at which full Newton steps overshoot: the line search brings them back."""
    kernel, mean, likelihood, y = problem(name)
    want = find_mode(kernel, mean, likelihood, y)
    generator = torch.Generator().manual_seed(1)
    for size in (1.0, 3.0):
        start = size * torch.randn(want.weights.shape, generator=generator).double()
        found = find_mode(kernel, mean, likelihood, y, start)
        torch.testing.assert_close(found.latent, want.latent, rtol=0.0, atol=1e-9)


def test_counts_need_the_line_search():
    """exp(f) overshoots by far from a mean of -8 with counts of 40."""
    kernel, mean, likelihood, _ = problem("poisson")
    y = torch.full((len(kernel),), 40.0, dtype=torch.float64)
    mode = find_mode(kernel, mean - 8.0, likelihood, y)
    assert mode.report.residual < 1e-8


@pytest.mark.parametrize("count", [1e5, 1e6, 1e8])
def test_rounding_of_the_density_of_large_counts_does_not_refuse_the_last_steps(count):
    """Terms of 1e9 nats cancel in log p, where the last steps change it by less than 1e-8."""
    x = torch.linspace(0.0, 1.0, 100, dtype=torch.float64)[:, None]
    y = (count * (0.5 * (6.0 * x[:, 0]).sin()).exp()).round()
    kernel = RBF(lengthscale=0.3, outputscale=2.0).double().evaluate(x).detach()
    mode = find_mode(kernel, torch.zeros_like(y), Poisson().double(), y)
    assert mode.report.iterations < 50
    torch.testing.assert_close(mode.latent, y.log(), rtol=0.0, atol=3.0 * count**-0.5)


def test_a_matrix_that_is_no_covariance_is_named_as_the_cause():
    """Steps then lead downhill, and more of them do not help."""
    _, mean, likelihood, y = problem("logit")
    broken = -0.1 * torch.eye(len(y), dtype=torch.float64)
    with pytest.raises(DidNotConverge, match=r"no step that raises .* not positive definite"):
        find_mode(broken, mean, likelihood, y)


def test_a_warm_start_takes_fewer_steps():
    kernel, mean, likelihood, y = problem("logit")
    cold = find_mode(kernel, mean, likelihood, y)
    warm = find_mode(1.01 * kernel, mean, likelihood, y, cold.weights)
    assert warm.report.iterations < cold.report.iterations


def test_steps_that_run_out_are_an_error():
    kernel, mean, likelihood, y = problem("logit", 100.0)
    with pytest.raises(DidNotConverge, match=r"after 2 steps, expected 1\.0e-06; raise max_iter"):
        find_mode(kernel, mean, likelihood, y, max_iterations=2)


def test_a_start_that_overflows_is_not_taken():
    """Weights of a kernel a hundred times smaller send exp(f) beyond every number."""
    kernel, mean, likelihood, y = problem("poisson")
    start = find_mode(0.01 * kernel, mean, likelihood, y).weights
    found = find_mode(100.0 * kernel, mean, likelihood, y, 50.0 * start)
    want = find_mode(100.0 * kernel, mean, likelihood, y)
    assert found.report.iterations == want.report.iterations
    torch.testing.assert_close(found.latent, want.latent, rtol=0.0, atol=1e-9)
