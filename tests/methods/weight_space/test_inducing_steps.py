"""Solves for inducing-point weights: certified, resumable, with a warning where they end early."""

import copy
import math
import pickle

import pytest
import torch
from inducing_problems import NOISE, dense, problem, solve

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import UnconvergedWarning
from gpx.means import Zero
from gpx.models import QSGPInducing
from gpx.training import InducingSteps

pytestmark = pytest.mark.usefixtures("float64_by_default")


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
    noise = torch.randn(400, generator=torch.Generator().manual_seed(1))
    y = (torch.sin(2 * x[:, 0]) + 0.1 * noise).float()
    kernel, likelihood = RBF(2, 3.0, 1e4), Gaussian(0.01)
    model = QSGPInducing(
        kernel=kernel, mean=Zero(), likelihood=likelihood, num_data=400, num_inputs=2, rank=10
    ).float()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    optimizer, _ = solve(model, x, y)
    assert optimizer.state["exact"]
    assert optimizer.outcome.startswith("converged")
    k = model.kernel.double().evaluate(x.double()).detach()
    system = k + model.noise_variance.detach().double() * torch.eye(400)
    exact = k @ torch.linalg.solve(system, y.double())
    error = (k @ optimizer.state["solution"] - exact).square().mean().sqrt()
    assert float(error) <= 0.021 * 0.1


@pytest.mark.parametrize("variance", ["projection", "mean_field"])
def test_certificates_hold_for_predictions_in_float32(variance):
    """Weights of 1e4 and both signs: those rounded to float32 are 0.3 noise deviations off."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).float()
    noise = math.sqrt(1e-5) * torch.randn(400, generator=torch.Generator().manual_seed(1))
    y = (torch.sin(2 * x[:, 0]) + noise).float()
    kernel, likelihood = RBF(2, 1.0, 10.0), Gaussian(1e-5)
    settings = {"num_data": 400, "num_inputs": 2, "rank": 200, "variance": variance}
    model = QSGPInducing(kernel=kernel, mean=Zero(), likelihood=likelihood, **settings).float()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    solve(model, x, y, tolerance=1e-3, error="worst")
    restored = QSGPInducing(kernel=kernel, mean=Zero(), likelihood=likelihood, **settings).float()
    restored.load_state_dict(model.state_dict())
    found = [m.condition(x, y).predict(x).mean.double() for m in (model, restored)]
    k = model.kernel.double().evaluate(x.double()).detach()
    system = k + model.noise_variance.detach().double() * torch.eye(400)
    exact = k @ torch.linalg.solve(system, y.double())
    bound = float(model.mean_error) + 1e-6  # of values around 1 in float32
    assert float((found[0] - exact).abs().max()) < bound < 1e-2 * math.sqrt(1e-5)
    assert torch.equal(found[0], found[1])


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


def test_steps_that_solved_for_one_model_begin_anew_with_the_next():
    steps, found = InducingSteps(), []
    for scale in (1.0, 2.0):
        model, x, y = problem(n=60)
        steps.bind(model, x, 0)
        for step in range(steps.max_steps(100)):
            if steps.converged:
                break
            steps.step(step, x, scale * y, generator=None)
        found.append(model.weight_mean.detach())
    torch.testing.assert_close(found[1], 2.0 * found[0], rtol=0, atol=0.1)
    assert float(found[0].abs().max()) > 1.0


def test_gradient_steps_after_a_solve_leave_no_digits_of_earlier_weights():
    model, _, _ = problem(n=30, rank=5)
    model.float().set_weights(torch.full((30,), 1.0 / 3.0))
    with torch.no_grad():
        model.weight_mean[::2] *= 1e-3
    moved, kept = model.weights()[::2], model.weights()[1::2]
    assert torch.equal(moved, model.weight_mean.detach()[::2, 0].double())
    torch.testing.assert_close(kept, torch.full((15,), 1.0 / 3.0), rtol=1e-13, atol=0)


def test_states_and_pickles_of_weights_in_one_precision_load():
    model, x, y = problem(n=30, rank=5)
    solve(model, x, y)
    before = model.weights()
    state = {name: value for name, value in model.state_dict().items() if name != "weight_rest"}
    fresh, _, _ = problem(n=30, rank=5)
    fresh.load_state_dict(state)
    assert torch.equal(fresh.weights(), before)
    old = copy.copy(model)
    old._buffers = {k: v for k, v in model._buffers.items() if k != "weight_rest"}
    assert torch.equal(pickle.loads(pickle.dumps(old)).weights(), before)


def test_a_quadratic_form_that_rounding_makes_negative_gives_a_bound_all_the_same(monkeypatch):
    model, x, y = problem(n=30, rank=5)
    steps = InducingSteps(tolerance=1e-9, error="worst")
    steps.bind(model, x, 0)
    steps.step(0, x, y, generator=None)
    _, certified = steps._errors()
    monkeypatch.setattr(steps.system.preconditioner, "solve", lambda r: -1e-9 * r)
    assert certified <= steps._errors()[1] < math.inf


def test_a_solve_that_reaches_its_limit_warns():
    model, x, y = problem(n=100, rank=2)
    with pytest.warns(UnconvergedWarning, match="max_products"):
        optimizer, _ = solve(model, x, y, tolerance=1e-8, max_products=2)
    assert not optimizer.converged
    assert float(model.mean_error) > 0


@pytest.mark.parametrize(
    "options", [{"method": "newton"}, {"error": "mean"}, {"tolerance": 0.0}, {"max_products": 0}]
)
def test_options_of_the_steps_out_of_range(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
        InducingSteps(**options)


def test_a_block_above_the_data_is_refused():
    model, x, _ = problem(n=20, rank=5)
    with pytest.raises(ConfigError, match=r"block_size=21 is above the 20 training"):
        InducingSteps(method="gauss_seidel", block_size=21).check(model, len(x))
    InducingSteps(method="conjugate_gradients", block_size=21).check(model, len(x))
