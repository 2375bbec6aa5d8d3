"""Stochastic block steps: exact fitted values, limits, an honest bound, a cost free of n and m."""

import math
from functools import partial

import pytest
import torch
from block_problems import block_diagonal, waves
from draws import draws
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.stochastic_block_steps import Rounds
from gpx.models import QSGP
from gpx.objectives import WeightSpaceELBO
from gpx.training import StochasticBlockSteps

N = 120


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(noise=0.3, n=N, **options):
    return block_diagonal(noise, **options), *waves(n, draws())


def run(steps, model, x, y, count, start=0):
    if start == 0:
        steps.check(model, x.shape[0])
        steps.bind(model, x, seed=0)
    generator = torch.Generator()
    return [float(steps.step(k, x, y, generator=generator).value) for k in range(start, count)]


def mean_of(model):
    return model.family.mean.detach().reshape(-1)


def test_rounds_grow_to_all_groups_and_stay_there():
    rounds = Rounds(5, 1.2)
    assert [rounds.active(k) for k in range(7)] == [1, 2, 3, 4, 5, 5, 5]
    places = [rounds.at(step) for step in range(21)]
    assert places[:6] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert places[10:16] == [(4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (5, 0)]
    assert [rounds.first_visit(group) for group in range(5)] == [0, 1, 2, 3, 4]
    assert [Rounds(1, 2.0).at(step) for step in range(2)] == [(0, 0), (1, 0)]
    assert [Rounds(100, 2.0).active(k) for k in range(9)] == [1, 2, 4, 8, 16, 32, 64, 100, 100]


def test_fitted_values_are_exact_at_every_step():
    model, x, y = problem()
    steps = StochasticBlockSteps(rows=30)
    steps.check(model, N)
    steps.bind(model, x, seed=0)
    phi = model.basis(x).detach()
    for k in range(12):
        number, _ = steps._rounds.at(k)
        torch.testing.assert_close(steps.fitted, phi[steps._rows(number)] @ mean_of(model))
        steps.step(k, x, y, generator=torch.Generator())
    drawn = torch.cat([steps._batches.rows(k) for k in range(4)])
    assert len(set(drawn.tolist())) == N  # rounds of one epoch are disjoint


def test_the_first_round_is_the_exact_posterior_of_its_rows_under_fewer_functions():
    model, x, y = problem()
    steps = StochasticBlockSteps(rows=60)
    run(steps, model, x, y, 1)
    alone = QSGP(
        kernel=model.kernel,
        mean=Zero(),
        likelihood=Gaussian(0.3),
        num_basis=12,
        basis=partial(RandomFourier, block_frequencies=3),
        warm_start=False,
    )  # the same leading frequencies at the scale of 12 functions
    rows = steps._rows(0)
    phi = alone.basis(x[rows]).detach()
    want = torch.linalg.solve(phi.T @ phi + 0.3 * torch.eye(12), phi.T @ y[rows])
    found = model.basis(x).detach() @ mean_of(model)
    torch.testing.assert_close(found, alone.basis(x).detach() @ want)


def test_steps_approach_the_exact_posterior_mean():
    model, x, y = problem(noise=1.0)
    phi = model.basis(x).detach()
    want = phi @ torch.linalg.solve(phi.T @ phi + torch.eye(48), phi.T @ y)
    steps = StochasticBlockSteps(rows=60, step_decay=0.7)
    errors = []
    run(steps, model, x, y, 1)
    for start, stop in ((1, 10), (10, 120)):
        run(steps, model, x, y, stop, start)
        errors.append(float((phi @ mean_of(model) - want).norm() / want.norm()))
    assert errors[1] < min(errors[0], 0.1)


def test_many_more_filled_groups_than_rows_do_no_harm():
    model, x, y = problem(num_basis=120, block_columns=6)
    steps = StochasticBlockSteps(rows=40, step_decay=0.8)
    run(steps, model, x, y, 20 * 6)
    assert len(model.family.covariance.roots) == 2 * 20
    phi = model.basis(x).detach()
    want = phi @ torch.linalg.solve(phi.T @ phi + 0.3 * torch.eye(120), phi.T @ y)
    assert float((phi @ mean_of(model) - want).norm() / want.norm()) < 0.2


@pytest.mark.parametrize("count", [3, 30])
def test_the_final_bound_is_that_of_the_groups_that_joined(count):
    model, x, y = problem()
    steps = StochasticBlockSteps(rows=40, evidence_rows=4000)
    run(steps, model, x, y, count)
    posterior = model.condition(x, y)
    mean, variance = posterior.predict(x)
    joined = {3: 2, 30: 4}[count]
    columns, share = 12 * joined, joined / 4
    sigma = torch.zeros(48, 48)
    for cell in model.family.covariance.roots:
        root = model.family.covariance.root(cell, torch.float64)
        own = model.family.cells.columns(cell)
        sigma[own[:, None], own] = root.T @ root
    phi = model.basis(x).detach()
    torch.testing.assert_close(variance, ((phi @ sigma) * phi).sum(1))
    sigma = sigma[:columns, :columns]
    prior = torch.distributions.MultivariateNormal(torch.zeros(columns), torch.eye(columns) / share)
    q = torch.distributions.MultivariateNormal(mean_of(model)[:columns], sigma)
    kl = torch.distributions.kl_divergence(q, prior)
    want = float(model.likelihood.expected_log_prob(y, mean, variance).sum() - kl)
    found = steps.final_evidence(x, y, generator=torch.Generator().manual_seed(0))
    error = found.facts["evidence_standard_error"]
    assert abs(float(found.value) - want) < 4 * error
    assert float(found.parts["complexity"]) == pytest.approx(-float(kl), rel=1e-9)
    spread = model.likelihood.expected_log_prob(y, mean, variance).std() * N / 4000**0.5
    assert error == pytest.approx(float(spread), rel=0.1)
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(N), phi[:, :columns] @ phi[:, :columns].T / share + 0.3 * torch.eye(N)
    ).log_prob(y)
    assert want < float(evidence)
    if joined == 4:
        assert WeightSpaceELBO().evidence(model, x, y).value.item() == pytest.approx(want)
    else:
        with pytest.raises(ConfigError, match="no part of the model yet"):
            WeightSpaceELBO().evidence(model, x, y)


def test_going_on_from_a_state_is_the_same_run():
    options = {"rows": 30, "step_decay": 0.7}
    whole, x, y = problem()
    values = run(StochasticBlockSteps(**options), whole, x, y, 12)
    first, _, _ = problem()
    steps = StochasticBlockSteps(**options)
    run(steps, first, x, y, 5)
    second, again = problem()[0], StochasticBlockSteps(**options)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(steps.state_dict())
    again.bind(second, x, seed=0)
    assert run(again, second, x, y, 12, start=5) == values[5:]
    assert torch.equal(mean_of(second), mean_of(whole))


def test_steps_that_trained_a_model_begin_anew_with_the_next():
    steps, values = StochasticBlockSteps(rows=30), []
    for _ in range(2):
        model, x, y = problem()
        values.append(run(steps, model, x, y, 5))
    assert values[0] == values[1]


def test_rows_of_an_earlier_run_are_not_used_again():
    steps = StochasticBlockSteps(rows=30)
    model, x, y = problem()
    run(steps, model, x, y, 1)
    steps.release()
    fresh = StochasticBlockSteps(rows=30)
    found = []
    for one in (steps, fresh):
        model, x, y = problem(n=40)
        one.bind(model, x, seed=5)
        one.step(0, x, y, generator=torch.Generator())
        found.append(mean_of(model))
    assert torch.equal(*found)


def test_a_step_allocates_the_same_for_any_n_and_m():
    sums = []
    for n, m in ((200, 480), (200, 4800), (2000, 480)):
        model, x, y = problem(n=n, num_basis=m)
        steps = StochasticBlockSteps(rows=20)
        run(steps, model, x, y, 6)  # a permutation of all rows was drawn, once an epoch
        state = [*model.state_dict().values(), model.family.terms, x, y]
        state = [t.untyped_storage().data_ptr() for t in state if isinstance(t, torch.Tensor)]
        with _Allocations(state) as allocations:
            steps.step(6, x, y, generator=torch.Generator())
        sums.append(allocations.elements)
    assert sums[0] == sums[1] == sums[2] > 0


class _Allocations(TorchDispatchMode):
    """Counts the elements of all results that do not live in the state."""

    def __init__(self, state):
        super().__init__()
        self.state = set(state)
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in self.state:
            self.elements += out.numel()
        return out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1}, "rows=1 must be at least 2"),
        ({"growth": 1.0}, "growth=1.0 above 1"),
        ({"growth": math.nan}, "growth=nan above 1"),
        ({"growth": math.inf}, "growth=inf above 1"),
        ({"sweeps": math.nan}, "sweeps=nan must be positive"),
        ({"sweeps": math.inf}, "sweeps=inf must be positive"),
        ({"step_decay": 0.5}, "step_decay=0.5 in"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        StochasticBlockSteps(**options)


def test_invalid_setups_are_refused_before_training():
    model, _, _ = problem()
    with pytest.raises(ConfigError, match="rows=121 is above the 120 training rows"):
        StochasticBlockSteps(rows=121).check(model, N)
    model, _, _ = problem(covariance="mean_field")
    with pytest.raises(ConfigError, match=r"=StochasticBlockSteps\(\) needs .* or chevron use"):
        StochasticBlockSteps(rows=60).check(model, N)


def test_coarsely_stored_covariance_blocks_are_warned_of(caplog):
    for storage, count in (("float32", 0), ("float16", 1)):
        model, x, _ = problem(covariance_storage=storage)
        StochasticBlockSteps(rows=60).bind(model, x, seed=0)
        assert caplog.text.count("covariance_storage=float16 is too coarse") == count


def test_a_trained_model_is_refused_as_a_start():
    # its fitted values would be counted as zero
    model, x, y = problem()
    first, again = StochasticBlockSteps(rows=60), StochasticBlockSteps(rows=60)
    run(first, model, x, y, 3)
    first.release()
    with pytest.raises(ConfigError, match="starts from weights of zero"):
        again.bind(model, x, seed=0)
    assert all(p.requires_grad for p in model.parameters())
