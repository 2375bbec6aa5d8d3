"""Inducing-point QSGP: exact posterior mean, closed-form scales, augmented variance, functions."""

import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian, Laplace
from gpx.linalg import UnconvergedWarning
from gpx.means import Constant, Zero
from gpx.models import QSGPInducing
from gpx.models.inducing_posterior import augmentation
from gpx.training import InducingSteps

NOISE = 0.02


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(n=200, kernel=None, d=2, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, -1] + math.sqrt(NOISE) * torch.randn(n, generator=generator)
    settings = {"rank": min(40, n), "variance_steps": 20, "variance": "augmented"}
    model = QSGPInducing(
        kernel or RBF(lengthscale=0.8, outputscale=1.5),
        Zero(),
        Gaussian(NOISE),
        num_data=n,
        num_inputs=d,
        **{**settings, **options},
    )
    model.initialise(x, y, generator=generator)
    return model, x, y


def solve(model, x, y, limit=10_000, **options):
    optimizer = InducingSteps(**options)
    optimizer.check(model, x.shape[0])
    optimizer.bind(model, x, 0)
    values = []
    for step in range(optimizer.max_steps(limit)):
        values.append(float(optimizer.step(step, x, y, generator=None).value))
        if optimizer.converged:
            break
    return optimizer, values


def dense(model, x, y):
    """K and (K + noise I)^-1 y."""
    k = model.kernel.evaluate(x).detach()
    return k, torch.linalg.solve(k + NOISE * torch.eye(x.shape[0]), y)


@pytest.mark.parametrize("name", [RBF, Matern32])
def test_conjugate_gradients_recover_the_exact_mean_within_their_certificate(name):
    model, x, y = problem(kernel=name(2, 0.8, 1.5))
    optimizer, _ = solve(model, x, y, tolerance=0.01, error="worst")
    _, alpha = dense(model, x, y)
    grid = torch.randn(300, 2, generator=torch.Generator().manual_seed(3))
    found = model.condition(x, y).predict(grid).mean
    exact = model.kernel.evaluate(grid, x).detach() @ alpha
    bound = float(model.mean_error)
    assert optimizer.converged
    assert bound <= 0.01 * math.sqrt(NOISE)
    assert float((found - exact).abs().max()) <= bound
    assert float((found - exact).square().mean().sqrt()) < 1e-2 * float(y.std())


def test_average_error_certifies_fitted_values_and_the_bound_in_fewer_steps():
    tolerance = 0.05
    model, x, y = problem(kernel=Matern32(2, 0.8, 1.5), rank=5)
    optimizer, values = solve(model, x, y, tolerance=tolerance)
    k, alpha = dense(model, x, y)
    found = model.weight_mean.detach()[:, 0]
    error = (k @ (found - alpha)).square().mean().sqrt() / math.sqrt(NOISE)
    assert float(error) <= tolerance
    assert optimizer.outcome.startswith("converged: fitted values within 0.0")

    def mean_terms(weights):
        return -0.5 * ((y - k @ weights).square().sum() / NOISE + weights @ k @ weights)

    gap = float(mean_terms(alpha) - mean_terms(found)) / len(y)
    assert 0.0 < gap <= 0.5 * tolerance**2
    worst = solve(model, x, y, tolerance=tolerance, error="worst")[1]
    assert len(values) < len(worst)


def test_products_that_float32_cannot_carry_are_float64():
    """Repeated inputs and a prior variance of 1e6 noise variances: rounding is above the noise."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).repeat(10, 1).float()
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(1))
    kernel, likelihood = RBF(2, 3.0, 1e4), Gaussian(0.01)
    model = QSGPInducing(kernel, Zero(), likelihood, num_data=400, num_inputs=2, rank=10).float()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    optimizer, _ = solve(model, x, y)
    assert optimizer.state["exact"]
    assert optimizer.outcome.startswith("converged")
    k = model.kernel.double().evaluate(x.double()).detach()
    system = k + model.noise_variance.detach().double() * torch.eye(400)
    exact = k @ torch.linalg.solve(system, y.double())
    error = (k @ optimizer.state["solution"] - exact).square().mean().sqrt()
    assert float(error) <= 0.021 * 0.1


@pytest.mark.parametrize("variance", ["augmented", "projection"])
def test_float32_predictions_sum_large_weights_of_both_signs(variance):
    """Entries and weights are float32; a float32 sum of their products would lose the mean."""
    generator = torch.Generator().manual_seed(0)
    x = 0.1 * torch.randn(3000, 1, generator=generator).float()
    kernel = RBF(1, 1.0, 1e4)
    model = QSGPInducing(
        kernel, Zero(), Gaussian(0.01), num_data=3000, num_inputs=1, rank=5, variance=variance
    ).float()
    posterior = model.condition(x, x[:, 0])
    weights = torch.randn(3000, generator=generator)
    posterior.alpha.copy_(weights - weights.mean())
    grid = x[:200]
    entries = kernel.evaluate(x, grid).detach()
    exact = entries.double().mT @ posterior.alpha.double()
    largest = float(exact.abs().max())
    assert largest < 1e-3 * 1e4 * 3000  # nearly all of the sum cancels
    found = posterior.predict(grid).mean.double()
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("method", ["conjugate_gradients", "gauss_seidel"])
def test_targets_of_zero_are_solved_at_once(method):
    """Constant targets, centred: there is nothing to divide by."""
    model, x, y = problem(n=60, rank=3)
    optimizer, values = solve(model, x, 0.0 * y, method=method, block_size=30)
    assert optimizer.converged
    assert math.isfinite(values[-1])
    assert not model.weight_mean.any()


@pytest.mark.filterwarnings("ignore::gpx.linalg.UnconvergedWarning")
def test_gauss_seidel_ascends_and_approaches_the_exact_mean():
    model, x, y = problem(kernel=Matern32(2, 0.8, 1.5))
    k, alpha = dense(model, x, y)
    system = k + NOISE * torch.eye(200)
    optimizer = InducingSteps(method="gauss_seidel", block_size=100, max_products=25)
    optimizer.bind(model, x, 0)
    before = 0.0
    for step in range(optimizer.max_steps(10_000)):
        optimizer.step(step, x, y, generator=None)
        weights = model.weight_mean.detach()[:, 0]
        value = float(y @ weights - 0.5 * weights @ system @ weights)
        assert value >= before - 1e-9 * abs(before)
        before = value
        kept = optimizer.state["residual"]
        torch.testing.assert_close(kept, y - system @ weights, rtol=0, atol=1e-8)
    error = (k @ (weights - alpha)).square().mean().sqrt()
    assert float(error) < 3e-2 * float(y.std())
    assert float(error) <= float(model.mean_error)


def test_bound_of_the_steps_is_the_exact_elbo_without_half_log_det():
    model, x, y = problem(n=40)
    optimizer, values = solve(model, x, y, tolerance=1e-6)
    k, alpha = dense(model, x, y)
    scale = model.scales().sqrt()
    # E_q log p(y | w) - KL(q | N(0, K^-1)) written out
    expected = -0.5 * (
        (y - k @ alpha).square().sum() / NOISE
        + (k * scale).square().sum() / NOISE
        + 40 * math.log(2 * math.pi * NOISE)
    )
    expected -= 0.5 * (alpha @ k @ alpha + (k.diagonal() * scale**2).sum() - 40)
    expected += scale.log().sum()
    assert values[-1] == pytest.approx(float(expected), rel=1e-9)
    torch.testing.assert_close(optimizer.evidence(40).value, expected)


def test_scales_are_the_minimisers_of_the_covariance_term():
    model, x, _ = problem(n=30)
    k = model.kernel.evaluate(x).detach()
    c = model.scales().sqrt().requires_grad_()
    loss = ((k * c).square().sum() / NOISE) + (k.diagonal() * c**2).sum() - 2 * c.log().sum()
    (gradient,) = torch.autograd.grad(loss, c)
    assert float((gradient * c.detach()).abs().max()) < 1e-10


@pytest.mark.filterwarnings("ignore::gpx.linalg.UnconvergedWarning")
def test_steps_resume_from_their_state():
    model, x, y = problem(n=60, rank=3)
    solve(model, x, y, limit=6, tolerance=1e-9, max_products=100)
    expected = model.weight_mean.detach().clone()
    model, x, y = problem(n=60, rank=3)
    first = InducingSteps(tolerance=1e-9, max_products=100)
    first.bind(model, x, 0)
    first.max_steps(6)
    for step in range(3):
        first.step(step, x, y, generator=None)
    second = InducingSteps(tolerance=1e-9, max_products=100)
    second.load_state_dict(first.state_dict())
    second.bind(model, x, 0)
    second.max_steps(6)
    for step in range(3, 6):
        second.step(step, x, y, generator=None)
    assert torch.equal(model.weight_mean, expected)


def test_a_solve_that_runs_out_says_so():
    model, x, y = problem(n=100, rank=2)
    with pytest.warns(UnconvergedWarning, match="max_products"):
        optimizer, _ = solve(model, x, y, tolerance=1e-8, max_products=2)
    assert not optimizer.converged
    assert float(model.mean_error) > 0


def test_augmentation_is_the_minimum_of_the_augmented_covariance_term():
    model, x, _ = problem(n=25)
    point = torch.tensor([[0.3, -0.4]])
    k = model.kernel.evaluate(x, point).detach()[:, 0]
    prior = model.kernel.diagonal(point).detach()[0]
    # L_Sigma of the added column as a function of log c: |k|^2 c^2 / noise + k_** c^2 - 2 log c
    log_c = torch.zeros((), requires_grad=True)
    for _ in range(60):  # Newton on a convex function of one variable
        c2 = (2 * log_c).exp()
        loss = c2 * (k.square().sum() / NOISE + prior) - 2 * log_c
        (gradient,) = torch.autograd.grad(loss, log_c, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient, log_c)
        with torch.no_grad():
            log_c -= gradient / curvature
    want = (2 * log_c.detach()).exp() * prior**2
    found = augmentation(k.square().sum()[None], prior[None], torch.tensor(NOISE))[0]
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)


def test_augmented_variance_reverts_to_the_prior_and_changes_no_mean():
    model, x, y = problem(n=20, d=1)
    solve(model, x, y)
    far = torch.tensor([[60.0], [-80.0]])
    augmented = model.condition(x, y)
    model.variance = "mean_field"
    plain = model.condition(x, y)
    prior = model.kernel.diagonal(far).detach()
    torch.testing.assert_close(augmented.predict(far).variance, prior, rtol=1e-6, atol=0)
    assert float(plain.predict(far).variance.max()) < 1e-12
    near = x + 0.05
    assert torch.equal(augmented.predict(near).mean, plain.predict(near).mean)
    assert bool((augmented.predict(near).variance > plain.predict(near).variance).all())


@pytest.mark.parametrize("variance", ["projection", "collapsed"])
def test_richer_variances_lie_above_the_exact_one(variance):
    model, x, y = problem(n=80, rank=60, variance=variance)
    solve(model, x, y)
    k, _ = dense(model, x, y)
    grid = torch.randn(50, 2, generator=torch.Generator().manual_seed(3))
    cross = model.kernel.evaluate(x, grid).detach()
    inner = torch.linalg.solve(k + NOISE * torch.eye(80), cross)
    exact = model.kernel.diagonal(grid).detach() - (cross * inner).sum(0)
    found = model.condition(x, y).predict(grid).variance
    if variance == "projection":
        assert bool((found >= exact - 1e-8).all())
    torch.testing.assert_close(found, exact, rtol=0.3, atol=1e-3)


def test_sampled_functions_have_the_posterior_moments_and_are_repeatable():
    model, x, y = problem(n=60)
    solve(model, x, y, tolerance=0.01)
    paths = model.condition(x, y).sample_paths(400, generator=torch.Generator().manual_seed(2))
    grid = x[:7] + 0.1
    values = paths(grid)
    assert torch.equal(values, paths(grid))
    k, alpha = dense(model, x, y)
    cross = model.kernel.evaluate(x, grid).detach()
    variance = 1.5 - (cross * torch.linalg.solve(k + NOISE * torch.eye(60), cross)).sum(0)
    error = (values.mean(0) - cross.T @ alpha).abs() / (variance / 400).sqrt()
    assert float(error.max()) < 4.5
    torch.testing.assert_close(values.var(0), variance, rtol=0.35, atol=1e-3)


def test_posterior_survives_its_state():
    model, x, y = problem(n=30)
    solve(model, x, y)
    before = model.condition(x, y)
    after = model.empty_posterior(30)
    after.load_state_dict(before.state_dict())
    grid = torch.randn(5, 2)
    assert torch.equal(before.predict(grid).mean, after.predict(grid).mean)
    assert torch.equal(before.predict(grid).variance, after.predict(grid).variance)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mean": Constant()}, "needs mean=zero"),
        ({"likelihood": Laplace()}, "needs likelihood=gaussian"),
        ({"rank": 31}, "above the 30 training points"),
        ({"hyperparameters": "learned"}, "has no diagonal"),
        ({"variance": "full"}, "expected one of"),
    ],
)
def test_what_does_not_fit_is_one_sentence(options, sentence):
    settings = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(), "rank": 5}
    with pytest.raises(ConfigError, match=sentence):
        QSGPInducing(**{**settings, **options}, num_data=30, num_inputs=2)


@pytest.mark.parametrize(
    "options", [{"method": "newton"}, {"error": "mean"}, {"tolerance": 0.0}, {"max_products": 0}]
)
def test_options_of_the_steps_out_of_range(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
        InducingSteps(**options)
