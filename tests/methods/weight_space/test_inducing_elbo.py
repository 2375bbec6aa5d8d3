"""Inducing-point bound: unbiased with a dense prior precision, control variates of mean zero."""

import itertools
import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGPInducing
from gpx.objectives import InducingELBO

N, NOISE = 4, 0.1


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(n=N, functions=2, support_rows=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator)
    kernel = RBF(lengthscale=1.1, outputscale=1.3)
    model = QSGPInducing(
        kernel=kernel, mean=Zero(), likelihood=Gaussian(NOISE), num_data=n, num_inputs=2, rank=n
    )
    model.initialise(x, y, generator=generator)
    with torch.no_grad():
        model.weight_mean.copy_(torch.randn(n, 1, generator=generator))
    objective = InducingELBO(n, functions, support_rows)
    objective.prepare(model, x, y, generator=generator)
    return model, objective, x, y


def exact(model, x, y):
    """Bound less 1/2 log|K| from its definition, and its gradient in the weights."""
    k = model.kernel.evaluate(x).detach()
    mu = model.weight_mean.detach().clone().requires_grad_()
    c = model.scales()
    misfit = (y - k @ mu[:, 0]).square().sum() + (k.square() @ c).sum()
    value = -0.5 * (misfit / NOISE + len(y) * math.log(2 * math.pi * NOISE))
    value = value - 0.5 * (mu[:, 0] @ k @ mu[:, 0] + k.diagonal() @ c - len(y))
    value = value + 0.5 * c.log().sum()
    (gradient,) = torch.autograd.grad(value, mu)
    return value.detach(), gradient


@pytest.mark.parametrize("support_rows", [0, 3])
def test_value_and_gradient_are_unbiased_over_all_samples(support_rows):
    model, objective, x, y = problem(support_rows=support_rows)
    want, want_gradient = exact(model, x, y)
    total, gradient, count = 0.0, torch.zeros(N, 1), 0
    # a list of two different functions comes in two orders, which the estimate does not tell
    pairs = itertools.combinations_with_replacement(range(N), 2)
    lists = [(torch.tensor(pair), 1 + (pair[0] != pair[1])) for pair in pairs]
    for row, (i, times_i), (j, times_j) in itertools.product(range(N), lists, lists):
        model.zero_grad()
        value = objective.estimate(model, x[row : row + 1], y[row : row + 1], i, j).value
        value.backward()
        times = times_i * times_j
        total += times * float(value.detach())
        gradient += times * model.weight_mean.grad.to_dense()
        count += times
    assert count == N**5
    assert total / count == pytest.approx(float(want), rel=1e-10)
    torch.testing.assert_close(gradient / count, want_gradient, rtol=1e-9, atol=1e-9)


def test_full_lists_give_the_exact_bound_and_so_does_the_streamed_one():
    model, objective, x, y = problem(n=12, functions=12, support_rows=4)
    want, want_gradient = exact(model, x, y)
    found = objective.evidence(model, x, y, generator=torch.Generator())
    found.value.backward()
    torch.testing.assert_close(found.value.detach(), want)
    torch.testing.assert_close(model.weight_mean.grad.to_dense(), want_gradient)
    full = objective.full_evidence(model, x, y, batch_size=5)
    torch.testing.assert_close(full.value, want)


def test_gradient_of_one_sample_with_its_corrections():
    # the mean over samples does not see the gradients of the corrections, whose own mean is zero
    model, objective, x, y = problem(n=12, functions=4, support_rows=5)
    i, j = torch.tensor([0, 3, 7, 11]), torch.tensor([1, 3, 7, 9])
    objective.estimate(model, x[:6], y[:6], i, j).value.backward()
    k, v = model.kernel.evaluate(x).detach(), model.weight_mean.detach()[:, 0]
    support = model.kernel.evaluate(objective.support, x).detach()
    white = torch.linalg.solve(objective.factor, support)
    rows, ratio = k[:6], 12 / 4
    want = torch.zeros(12).index_add(0, i, -2 * (12 / 6) * ratio * rows[:, i].mT @ y[:6] / NOISE)
    for one, other in ((i, j), (j, i)):
        fitted = (12 / 6) * rows[:, one].mT @ rows[:, other] / NOISE + k[one][:, other]
        slope = ratio**2 * fitted @ v[other]
        # |P v|^2 - ratio^2 (P_j v_j)^T P_i v_i, the first with the gradient of its two lists
        for p, weight in ((support, 12 / (5 * NOISE)), (white, 1.0)):
            residual = p @ v - ratio * p[:, other] @ v[other]
            slope = slope + weight * ratio * p[:, one].mT @ residual
        want = want.index_add(0, one, slope)
    torch.testing.assert_close(model.weight_mean.grad.to_dense()[:, 0], -0.5 * want)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch, once a process
def test_projections_follow_adagrad():
    model, objective, x, y = problem(n=30, functions=6, support_rows=8)
    objective.drift_interval = 0
    optimiser = torch.optim.Adagrad([model.weight_mean], lr=0.05)
    generator = torch.Generator().manual_seed(1)
    start = float(exact(model, x, y)[0])
    for _ in range(300):
        rows = torch.randint(30, (10,), generator=generator)
        optimiser.zero_grad()
        (-objective.evidence(model, x[rows], y[rows], generator=generator).value / 30).backward()
        optimiser.step()
        objective.after_step(model)
    carried, prior = objective.projection.clone(), objective.prior_projection.clone()
    with torch.no_grad():
        objective._project(model)
    torch.testing.assert_close(carried, objective.projection, rtol=0, atol=1e-10)
    torch.testing.assert_close(prior, objective.prior_projection, rtol=0, atol=1e-10)
    assert float(exact(model, x, y)[0]) > start


def test_projections_are_recomputed_on_time(monkeypatch):
    model, objective, x, y = problem(n=12, functions=4, support_rows=5)
    objective.drift_interval, at = 3, []
    monkeypatch.setattr(objective, "_project", lambda _: at.append(objective.steps))
    for _ in range(7):
        objective.evidence(model, x, y, generator=torch.Generator())
        objective.after_step(model)
    assert at == [3, 6]


def test_control_variates_lower_the_variance():
    spread = {}
    for rows in (0, 20):
        model, objective, x, y = problem(n=60, functions=6, support_rows=rows)
        generator = torch.Generator().manual_seed(2)
        values = [
            float(objective.evidence(model, x, y, generator=generator).value.detach())
            for _ in range(300)
        ]
        spread[rows] = torch.tensor(values).var()
    assert float(spread[20]) < 0.3 * float(spread[0])


@pytest.mark.parametrize("options", [{"functions": 31}, {"support_rows": 31}, {"functions": 0}])
def test_lists_and_support_stay_within_n(options):
    with pytest.raises(ConfigError, match="30"):
        InducingELBO(30, **options)


def test_state_carries_the_control_variates():
    model, objective, x, y = problem(n=12, functions=4, support_rows=5)
    other = InducingELBO(12, 4, 5)
    other.load_state_dict(objective.state_dict())
    i = torch.tensor([1, 2, 3, 4])
    first = objective.estimate(model, x, y, i, i.flip(0) + 3).value
    second = other.estimate(model, x, y, i, i.flip(0) + 3).value
    assert torch.equal(first, second)
