import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn

from gpx.bounds import limits_within, lower_limits
from gpx.constraints import fix
from gpx.errors import CheckpointError, ConfigError, DidNotConverge, NotPositiveDefinite
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.training import resumable_search
from gpx.training.lbfgsb import LBFGSB
from gpx.training.resumable_search import STATIONARY


def rosenbrock(parameters):
    a, b = parameters[0], parameters[1]
    return (1 - a) ** 2 + 100 * (b - a**2) ** 2


def fresh_parameters():
    return [
        nn.Parameter(torch.tensor(-1.2, dtype=torch.float64)),
        nn.Parameter(torch.tensor(1.0, dtype=torch.float64)),
    ]


def values(parameters):
    return [p.item() for p in parameters]


def test_reaches_scipys_optimum():
    parameters = fresh_parameters()
    solver = LBFGSB(ftol=1e-15, gtol=1e-10)
    solver.minimise(parameters, lambda: rosenbrock(parameters), 200, lambda *_: None)
    oracle = scipy.optimize.minimize(
        scipy.optimize.rosen, np.array([-1.2, 1.0]), jac=scipy.optimize.rosen_der, method="L-BFGS-B"
    )
    assert values(parameters) == pytest.approx([1.0, 1.0], abs=1e-6)
    assert rosenbrock(parameters).item() <= oracle.fun + 1e-12


def test_budget_is_exact_and_best_point_is_kept():
    parameters = fresh_parameters()
    solver = LBFGSB()
    seen = []
    reason = solver.minimise(
        parameters, lambda: rosenbrock(parameters), 7, lambda count, value, _: seen.append(value)
    )
    assert len(seen) == len(solver.record.evaluations) == 7
    assert "max_steps=7" in reason
    assert rosenbrock(parameters).item() == min(seen)


class _Stop(Exception):
    pass


@pytest.mark.parametrize("stop_at", [1, 2, 9, 20])
def test_a_stopped_run_goes_on_bit_for_bit(stop_at):
    whole = fresh_parameters()
    reference = LBFGSB()
    reference.minimise(whole, lambda: rosenbrock(whole), 30, lambda *_: None)

    first = fresh_parameters()
    stopped = LBFGSB()

    def interrupt(count, value, replayed):
        if count == stop_at:
            raise _Stop

    with pytest.raises(_Stop):
        stopped.minimise(first, lambda: rosenbrock(first), 30, interrupt)
    state = stopped.state_dict()

    second = fresh_parameters()
    live = []
    resumed = LBFGSB()
    resumed.load_state_dict(state)

    def loss():
        live.append(1)
        return rosenbrock(second)

    resumed.minimise(second, loss, 30, lambda *_: None)
    assert values(second) == values(whole)
    assert len(live) == len(reference.record.evaluations) - stop_at  # replayed ones cost nothing
    for ours, theirs in zip(resumed.record.evaluations, reference.record.evaluations, strict=True):
        assert ours[:2] == theirs[:2]
        assert torch.equal(ours[2], theirs[2])


@pytest.mark.parametrize("stop_at", [3, 12, 25, 26, 27, 40])
def test_a_long_record_begins_anew_and_goes_on_bit_for_bit(monkeypatch, stop_at):
    monkeypatch.setattr(resumable_search, "RECORD_BYTES", 0)
    most = 3 * resumable_search.MIN_RECORD

    def minimise(solver, parameters, after):
        solver.minimise(parameters, lambda: rosenbrock(parameters), 400, after)
        return values(parameters)

    whole, reference, lengths = fresh_parameters(), LBFGSB(memory=3, ftol=0.0), []

    def watch(count, value, replayed):
        assert not replayed
        lengths.append(len(reference.record.evaluations))
        assert count == len(lengths)

    reached = minimise(reference, whole, watch)
    assert reached == pytest.approx([1.0, 1.0], abs=1e-6)
    assert most <= max(lengths) < most + 20  # a line search runs to its end
    assert reference.record.dropped > most
    assert reference.record.lowest == rosenbrock(whole).item()

    def interrupt(count, value, replayed):
        if count == stop_at:
            raise _Stop

    first = LBFGSB(memory=3, ftol=0.0)
    with pytest.raises(_Stop):
        minimise(first, fresh_parameters(), interrupt)
    assert len(first.state_dict()["gradients"]) < most + 20
    second = LBFGSB(memory=3, ftol=0.0)
    second.load_state_dict(first.state_dict())
    assert minimise(second, fresh_parameters(), lambda *_: None) == reached
    assert second.record.dropped == reference.record.dropped
    assert second.record.lowest == reference.record.lowest


def test_a_finished_search_keeps_no_gradients():
    parameters = fresh_parameters()
    solver = LBFGSB()
    solver.minimise(parameters, lambda: rosenbrock(parameters), 6, lambda *_: None)
    assert len(solver.state_dict()["gradients"]) == 6
    assert solver.finish()
    assert solver.state_dict() == {"start": None}
    assert not solver.finish()


def test_a_record_that_does_not_replay_is_an_error():
    parameters = fresh_parameters()
    solver = LBFGSB()
    solver.minimise(parameters, lambda: rosenbrock(parameters), 6, lambda *_: None)
    state = solver.state_dict()
    state["gradients"][1] += 1.0
    other = LBFGSB()
    other.load_state_dict(state)
    again = fresh_parameters()
    with pytest.raises(CheckpointError, match="cannot be resumed exactly"):
        other.minimise(again, lambda: rosenbrock(again), 6, lambda *_: None)


def test_a_record_of_other_parameters_is_an_error_in_words():
    """Of a run that was stopped by a version that trained more of them."""
    parameters = fresh_parameters()
    solver = LBFGSB()
    solver.minimise(parameters, lambda: rosenbrock(parameters), 6, lambda *_: None)
    other = LBFGSB()
    other.load_state_dict(solver.state_dict())
    fewer = [nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    total = sum(p.numel() for p in parameters)
    with pytest.raises(CheckpointError, match=f"has {total} numbers and the model trains 1 .*anew"):
        other.minimise(fewer, lambda: fewer[0].square().sum(), 9, lambda *_: None)


@pytest.mark.parametrize("kind", [NotPositiveDefinite, DidNotConverge])
def test_line_search_steps_back_from_an_infeasible_point(kind):
    parameter = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    failures = []

    def loss():
        if parameter.item() < 0.5:  # as a kernel matrix that stops being positive definite
            failures.append(parameter.item())
            raise kind("too small")
        return parameter**2  # the optimum lies outside

    LBFGSB().minimise([parameter], loss, 60, lambda *_: None)
    assert failures
    assert 0.5 <= parameter.item() < 0.75


class _FailingSlope(torch.autograd.Function):
    """The identity, without a derivative."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        raise NotPositiveDefinite("in the backward pass")


@pytest.mark.parametrize("kind", ["raised", "slope", "value", "lowest"])
def test_a_trial_that_fails_late_or_is_not_finite_is_none_of_the_best(kind):
    parameter = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    failures, values = [], []

    def loss():
        value = parameter**2
        if parameter.item() < 0.5:
            failures.append(parameter.item())
            value = {
                "raised": lambda: _FailingSlope.apply(value),
                "slope": lambda: value + (parameter - parameter.detach()).sqrt(),  # inf or nan
                "value": lambda: value * torch.nan,
                "lowest": lambda: value * -torch.inf,
            }[kind]()
        return value

    LBFGSB().minimise(
        *([parameter], loss, 60, lambda count, value, replayed: values.append(value)),
        after_failure=lambda: values.append(None),
    )
    assert len(failures) == values.count(None) > 0
    assert all(math.isfinite(value) for value in values if value is not None)
    assert 0.5 <= parameter.item() < 0.75


def test_failure_at_the_start_is_raised():
    parameter = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def loss():
        raise NotPositiveDefinite("from the start")

    with pytest.raises(NotPositiveDefinite, match="from the start"):
        LBFGSB().minimise([parameter], loss, 10, lambda *_: None)


def test_parameters_keep_their_dtype():
    parameter = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float32))
    LBFGSB().minimise([parameter], lambda: (parameter**2).sum(), 20, lambda *_: None)
    assert parameter.dtype == torch.float32
    assert parameter.abs().max().item() < 1e-4


def noisy_waves(seed=1):
    """30 noisy values of a wave, and an exact GP that starts far from them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(30, 2, generator=generator, dtype=torch.float64) * 4 - 2
    y = torch.sin(2 * x[:, 0])
    y = y + 0.03 * torch.randn(30, generator=generator, dtype=torch.float64)
    kernel = Matern32(ard_num_dims=2, lengthscale=0.3, outputscale=0.1)
    model = ExactGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(5.0)).double()
    objective, parameters = ExactMLL(), list(model.parameters())
    return model, parameters, lambda: objective(model, x, y)


def test_a_noise_variance_thrown_onto_its_floor_comes_back():
    model, parameters, loss = noisy_waves()
    reason = LBFGSB().minimise(parameters, loss, 100, lambda *_: None)
    stuck = loss().item()
    assert STATIONARY in reason or "REDUCTION" in reason  # it looks settled
    assert model.likelihood.noise_variance.item() < 1.001e-6

    model, parameters, loss = noisy_waves()
    limits = lower_limits(model, parameters)
    LBFGSB().minimise(parameters, loss, 100, lambda *_: None, lower=limits)
    assert loss().item() < stuck - 0.4  # nats per point
    assert model.likelihood.noise_variance.item() == pytest.approx(1.367e-3, rel=1e-2)


def test_limits_that_no_iteration_passes_change_no_bit():
    paths = []
    for lower in (None, [-1.5, -0.5]):
        parameters, solver = fresh_parameters(), LBFGSB()
        solver.minimise(
            parameters, lambda p=parameters: rosenbrock(p), 60, lambda *_: None, lower=lower
        )
        paths.append(solver.record.evaluations)
    assert len(paths[0]) == len(paths[1])
    for free, limited in zip(*paths, strict=True):
        assert free[:2] == limited[:2]
        assert torch.equal(free[2], limited[2])


def test_an_optimum_beyond_a_limit_ends_on_it():
    parameters = fresh_parameters()
    LBFGSB().minimise(
        parameters, lambda: rosenbrock(parameters), 200, lambda *_: None, lower=[-9.0, 1.44]
    )
    assert values(parameters) == pytest.approx([-1.19617, 1.44], abs=1e-4)  # 200 (b - a^2) > 0
    started_beyond = fresh_parameters()
    LBFGSB().minimise(
        started_beyond, lambda: rosenbrock(started_beyond), 1, lambda *_: None, lower=[-1.0, -9.0]
    )
    assert values(started_beyond) == [-1.0, 1.0]


def test_with_upper_limits_no_evaluation_is_beyond_a_limit():
    parameters, solver = fresh_parameters(), LBFGSB()
    seen = []

    def loss():
        seen.append(values(parameters))
        return rosenbrock(parameters)

    lower, upper = [-9.0, -0.5], [0.5, 0.2]
    solver.minimise(parameters, loss, 200, lambda *_: None, lower=lower, upper=upper)
    assert all(low <= v <= high for p in seen for low, v, high in zip(lower, p, upper, strict=True))
    assert values(parameters)[1] == pytest.approx(0.2, abs=1e-12)  # 200 (b - a^2) < 0 at b = 0.2


def test_bounds_in_natural_units_are_kept_and_reached():
    x = torch.linspace(0.0, 6.0, 40, dtype=torch.float64).unsqueeze(1)
    model = ExactGP(kernel=RBF(1, 1.0, 1.0), mean=Zero(), likelihood=Gaussian(0.5)).double()
    parameters, objective, seen = list(model.parameters()), ExactMLL(), []
    solver = LBFGSB(
        bounds=[["kernel.lengthscale", 0.8, 1.25], ["likelihood.noise_variance", 0.1, 1]]
    )
    lower, upper = limits_within(model, parameters, solver.bounds)

    def loss():
        seen.append((model.kernel.lengthscale.item(), model.likelihood.noise_variance.item()))
        return -objective.evidence(model, x, (2.0 * x).sin()[:, 0]).value

    solver.minimise(parameters, loss, 40, lambda *_: None, lower=lower, upper=upper)
    assert all(0.8 - 1e-12 <= s <= 1.25 + 1e-12 and v >= 0.1 - 1e-12 for s, v in seen)
    assert model.likelihood.noise_variance.item() == pytest.approx(0.1, abs=1e-12)
    with pytest.raises(ConfigError, match="no such positive parameter; there are kernel"):
        limits_within(model, parameters, {"kernel.lengthscales": (0.1, 1.0)})
    for wrong in (
        ["kernel.lengthscale", 2, 1],
        ["kernel.lengthscale", 0, 0],
        ["kernel.lengthscale", 1],
        "kernel.lengthscale",
    ):
        with pytest.raises(ConfigError, match="a lowest and a largest value"):
            LBFGSB(bounds=[wrong])
    with pytest.raises(ConfigError, match=r"there are two of kernel\.lengthscale"):
        LBFGSB(bounds=[["kernel.lengthscale", 1, 2], ["kernel.lengthscale", 1, 3]])


def test_equal_bounds_hold_a_value_and_a_fixed_one_is_left_even_at_its_floor():
    x = torch.linspace(0.0, 6.0, 40, dtype=torch.float64).unsqueeze(1)
    model = ExactGP(kernel=RBF(1, 1.0, 1.0), mean=Zero(), likelihood=Gaussian(1e-6)).double()
    fix(model, "likelihood.noise_variance")
    parameters, objective = list(model.parameters()), ExactMLL()
    solver = LBFGSB(bounds=[["kernel.lengthscale", 0.6, 0.6]])
    lower, upper = limits_within(model, parameters, solver.bounds)

    def loss():
        return -objective.evidence(model, x, (2.0 * x).sin()[:, 0]).value / 40

    solver.minimise(parameters, loss, 15, lambda *_: None, lower=lower, upper=upper)
    assert model.kernel.lengthscale.item() == pytest.approx(0.6, rel=1e-12)
    assert model.likelihood.noise_variance.item() == pytest.approx(1e-6, rel=1e-9)
    assert abs(model.kernel.outputscale.item() - 1.0) > 0.1


def test_more_evaluations_never_end_higher_nor_beyond_a_limit():
    found = []
    for budget in range(1, 30):
        model, parameters, loss = noisy_waves()
        limits = lower_limits(model, parameters)
        LBFGSB().minimise(parameters, loss, budget, lambda *_: None, lower=limits)
        assert all((p >= low).all() for p, low in zip(parameters, limits, strict=True))
        found.append(loss().item())
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("stop_at", [5, 18, 40])
def test_a_run_stopped_before_or_after_it_met_a_limit_goes_on_bit_for_bit(stop_at):
    def minimise(solver, after, state=None):
        model, parameters, loss = noisy_waves()
        if state is not None:
            solver.load_state_dict(state)
        solver.minimise(parameters, loss, 60, after, lower=lower_limits(model, parameters))
        return [p.tolist() for p in parameters]

    def stop(count, value, replayed):
        if count == stop_at:
            raise _Stop

    whole = minimise(LBFGSB(), lambda *_: None)
    first = LBFGSB()
    with pytest.raises(_Stop):
        minimise(first, stop)
    assert minimise(LBFGSB(), lambda *_: None, first.state_dict()) == whole


class Jumping:
    """A loss with its own state: an offset that moves with iterations, and steps until frozen."""

    def __init__(self):
        self.offset, self.frozen, self.iterations = 0.0, False, 0

    def loss(self, parameters):
        value = rosenbrock(parameters)
        rough = 0.0 if self.frozen else (value.round(decimals=1) - value).detach()
        return value + rough + self.offset

    def after_iteration(self):
        self.iterations += 1
        self.offset -= 1e-3 * (self.iterations < 6)

    def after_stall(self):
        if self.frozen:
            return False
        self.frozen = True
        return True


@pytest.mark.parametrize("stop_at", [3, 12, 40])
def test_hooks_are_called_once_also_when_a_run_is_stopped_and_replayed(stop_at):
    def minimise(solver, parameters, state, after):
        return solver.minimise(
            parameters,
            lambda: state.loss(parameters),
            300,
            after,
            after_iteration=state.after_iteration,
            after_stall=state.after_stall,
        )

    whole, solver, state = fresh_parameters(), LBFGSB(ftol=1e-15, gtol=1e-8), Jumping()
    reason = minimise(solver, whole, state, lambda *_: None)
    assert state.frozen
    assert solver.record.restarts
    assert values(whole) == pytest.approx([1.0, 1.0], abs=1e-3)
    assert len(solver.record.evaluations) > stop_at

    def stop(count, value, replayed):
        if count == stop_at:
            raise _Stop

    parameters, first, moving = fresh_parameters(), LBFGSB(ftol=1e-15, gtol=1e-8), Jumping()
    with pytest.raises(_Stop):
        minimise(first, parameters, moving, stop)
    second = LBFGSB(ftol=1e-15, gtol=1e-8)
    second.load_state_dict(first.state_dict())
    assert minimise(second, fresh_parameters(), moving, lambda *_: None) == reason
    assert (moving.offset, moving.iterations) == (state.offset, state.iterations)
    assert second.record.restarts == solver.record.restarts
    assert [e[1] for e in second.record.evaluations] == [e[1] for e in solver.record.evaluations]


@pytest.mark.parametrize(
    "options", [{"memory": 0}, {"max_line_search": -1}, {"ftol": -1.0}, {"gtol": float("nan")}]
)
def test_settings_out_of_range_are_named(options):
    (name,) = options
    with pytest.raises(
        ConfigError, match=f"^{name}=.*(at least 1|must not be negative or infinite)$"
    ):
        LBFGSB(**options)
