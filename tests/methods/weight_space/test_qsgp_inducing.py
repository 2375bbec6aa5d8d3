"""Inducing-point QSGP: closed-form scales, augmented and richer variances, sampled functions."""

import pytest
import torch
from inducing_problems import NOISE, dense, problem, solve

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, Laplace
from gpx.means import Constant, Zero
from gpx.methods.weight_space.qsgp_inducing import augmentation
from gpx.models import QSGPInducing

pytestmark = pytest.mark.usefixtures("float64_by_default")


@pytest.mark.parametrize("variance", ["augmented", "projection"])
def test_float32_predictions_sum_large_weights_of_both_signs(variance):
    """A float32 sum of products, or float32 entries, would lose the mean."""
    generator = torch.Generator().manual_seed(0)
    x = 0.1 * torch.randn(3000, 1, generator=generator).float()
    kernel = RBF(1, 1.0, 1e4)
    model = QSGPInducing(
        kernel=kernel,
        mean=Zero(),
        likelihood=Gaussian(0.01),
        num_data=3000,
        num_inputs=1,
        rank=5,
        variance=variance,
    ).float()
    posterior = model.condition(x, x[:, 0])
    weights = torch.randn(3000, generator=generator)
    posterior.alpha.copy_(weights - weights.mean())
    grid = x[:200]
    entries = kernel.double().evaluate(x.double(), grid.double()).detach()
    exact = entries.mT @ posterior.alpha.double()
    largest = float(exact.abs().max())
    assert largest < 1e-3 * 1e4 * 3000  # nearly all of the sum cancels
    found = posterior.predict(grid).mean.double()
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6 * largest)


def test_scales_are_the_minimisers_of_the_covariance_term():
    model, x, _ = problem(n=30)
    k = model.kernel.evaluate(x).detach()
    c = model.scales().sqrt().requires_grad_()
    loss = ((k * c).square().sum() / NOISE) + (k.diagonal() * c**2).sum() - 2 * c.log().sum()
    (gradient,) = torch.autograd.grad(loss, c)
    assert float((gradient * c.detach()).abs().max()) < 1e-10


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


@pytest.mark.parametrize("variance", ["augmented", "mean_field"])
def test_further_observations_give_the_posterior_of_all_rows(variance):
    whole, x, y = problem(n=40, variance=variance)
    solve(whole, x, y, tolerance=1e-6, error="worst")
    part, _, _ = problem(n=30, variance=variance)
    part.initialise(x[:30], y[:30], generator=None)
    solve(part, x[:30], y[:30])
    grid = torch.randn(5, 2, generator=torch.Generator().manual_seed(3))
    found = part.condition(x[:30], y[:30]).with_observations(x[30:], y[30:], part.likelihood)
    want = whole.condition(x, y).predict(grid)
    torch.testing.assert_close(found.predict(grid).mean, want.mean, rtol=0, atol=2e-3)
    torch.testing.assert_close(found.predict(grid).variance, want.variance)


def test_posterior_survives_its_state():
    model, x, y = problem(n=30)
    solve(model, x, y)
    before = model.condition(x, y)
    after = model.new_posterior()
    after.load_state_dict(before.state_dict())
    grid = torch.randn(5, 2)
    assert torch.equal(before.predict(grid).mean, after.predict(grid).mean)
    assert torch.equal(before.predict(grid).variance, after.predict(grid).variance)


@pytest.mark.parametrize(("num_data", "rank"), [(30, 30), (999, 999), (1001, 1000)])
def test_the_default_rank_is_no_more_than_the_rows(num_data, rank):
    model = QSGPInducing(
        kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_data=num_data, num_inputs=2
    )
    assert model.options.rank == rank


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mean": Constant()}, "needs mean=Zero"),
        ({"likelihood": Laplace()}, "needs likelihood=Gaussian"),
        ({"rank": 31}, "above the 30 training points"),
        ({"hyperparameters": "learned"}, "has no diagonal"),
        ({"variance": "full"}, "expected one of"),
    ],
)
def test_invalid_setups_are_refused(options, sentence):
    settings = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(), "rank": 5}
    with pytest.raises(ConfigError, match=sentence):
        QSGPInducing(**{**settings, **options}, num_data=30, num_inputs=2)
