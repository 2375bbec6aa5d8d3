"""Evidence on grids with gaps against dense algebra, with closed-form gradients, and its record."""

import grid_problems
import pytest
import torch
from grid_problems import masked, scattered
from model_gradients import gradients

from gpx.bounds import lower_limits
from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF, Matern32
from gpx.kernels.over_axes import MultiOutput
from gpx.likelihoods import Gaussian
from gpx.linalg import UnconvergedWarning
from gpx.means import Zero
from gpx.methods.grid import logdet as grid_logdet
from gpx.methods.grid import mll
from gpx.methods.grid import points as grid_points
from gpx.methods.grid import system as grid_system
from gpx.models import GridGP
from gpx.objectives import GCV, ExactMLL, GridMLL
from gpx.training.lbfgsb import LBFGSB


@pytest.mark.parametrize("gaps", ["fill", "ignore", "penalize"])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_evidence_and_gradient_equal_dense_ones(gaps, share):
    _, x, y = grid_problems.draw(share)
    model, exact = grid_problems.pair(gaps=gaps, penalty=1e9, tolerance=1e-13)
    found = GridMLL("dense", bracket=True).evidence(model, x, y)
    want = ExactMLL().evidence(exact, x, y)
    tolerance = 1e-6 if gaps == "penalize" and share < 1 else 1e-8
    torch.testing.assert_close(found.value, want.value, rtol=tolerance, atol=0)
    for ours, dense in zip(
        gradients(found.value, model),
        gradients(want.value, exact),
        strict=True,
    ):
        torch.testing.assert_close(ours, dense, rtol=100 * tolerance, atol=1e-5)
    assert found.kind == ("estimate" if gaps == "penalize" and share < 1 else "exact")
    if gaps == "fill" and share < 1:
        assert 0.0 <= found.facts["evidence_fit_gap"] < 1e-9


def test_a_full_grid_agrees_to_nine_digits():
    """Evidence, gradient and predictions need no iteration there."""
    whole, x, y = grid_problems.draw(1.0, sizes=(7, 5, 4))
    model, exact = grid_problems.pair()
    found, want = GridMLL("dense").evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    torch.testing.assert_close(found.value, want.value, rtol=1e-9, atol=0)
    slopes = gradients(found.value, model), gradients(want.value, exact)
    for ours, dense in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-9)
    ours, dense = (m.condition(x, y).predict(whole + 0.01) for m in (model, exact))
    torch.testing.assert_close(ours.mean, dense.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.variance, dense.variance, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_a_grid_of_one_axis(share):
    _, points, y = grid_problems.draw(share, sizes=(30,))
    x = points.unsqueeze(1)
    model, dense = grid_problems.pair(d=1)
    found, want = GridMLL("auto").evidence(model, x, y), ExactMLL().evidence(dense, x, y)
    assert found.kind == "exact"
    torch.testing.assert_close(found.value, want.value, rtol=1e-10, atol=0)
    for a, b in zip(
        gradients(found.value, model),
        gradients(want.value, dense),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)
    near = GridMLL("nystrom").evidence(model, x, y).value
    assert float(near.detach()) == pytest.approx(float(want.value.detach()), rel=0.1)


def test_gradient_reaches_the_coregionalisation():
    x, y = grid_problems.stations()
    kernel = MultiOutput("matern32", 4, 2, [[0, 1], [2], [3]])
    model, exact = grid_problems.pair(kernel=kernel, axes=[[0, 1], [2], [3]], tolerance=1e-13)
    found = gradients(GridMLL("dense").evidence(model, x, y).value, model)
    want = gradients(ExactMLL().evidence(exact, x, y).value, exact)
    names = [name for name, _ in model.named_parameters()]
    assert any("root" in name for name in names)
    for ours, dense in zip(found, want, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-7, atol=1e-8)


def test_gradient_of_the_nystrom_route_is_its_own():
    """Central differences, every parameter."""
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair(tolerance=1e-13)
    objective = GridMLL("nystrom")
    found = gradients(objective.evidence(model, x, y).value, model)
    for parameter, slope in zip(model.parameters(), found, strict=True):
        flat, step = parameter.data.view(-1), 1e-5
        for i in range(flat.numel()):
            ends = []
            for sign in (1, -1):
                flat[i] += sign * step
                with torch.no_grad():
                    ends.append(float(objective.evidence(model, x, y).value))
                flat[i] -= sign * step
            difference = (ends[0] - ends[1]) / (2 * step)
            assert float(slope.view(-1)[i]) == pytest.approx(difference, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("gaps", "kind"), [("fill", "lower_bound"), ("ignore", "upper_bound")])
def test_a_solve_cut_short_makes_a_bound_and_is_recorded(gaps, kind):
    _, x, y = grid_problems.draw(0.6)
    steps = {"fill": 2, "ignore": 25}[gaps]  # further from a solution is refused
    options = {"gaps": gaps, "max_iterations": steps, "precondition_rank": 0}
    model, exact = grid_problems.pair(**options)
    with pytest.warns(UnconvergedWarning):
        found = GridMLL("dense").evidence(model, x, y)
    want = ExactMLL().evidence(exact, x, y).value
    assert found.kind == kind
    assert (found.value < want) == (kind == "lower_bound")
    assert found.facts["solver_converged"] is False
    assert found.facts["solver_residual"] > 1e-12
    with pytest.warns(UnconvergedWarning):
        facts = GCV("hutchinson").evidence(model, x, y).facts
    assert not any(facts[f"{name}_converged"] for name in ("solver", "gradient_solver"))
    assert facts["trace_solver_iterations"] == steps


@pytest.mark.parametrize(("gaps", "kind"), [("fill", "lower_bound"), ("ignore", "upper_bound")])
def test_a_loose_tolerance_makes_a_bound_too(gaps, kind):
    """Of about 140 nats; every solve has converged to what was asked for."""
    _, x, y = grid_problems.draw(0.6)
    kinds = []
    for tolerance in (0.5, 0.1, 0.02, 1e-3):
        model, exact = grid_problems.pair(gaps=gaps, tolerance=tolerance)
        with torch.no_grad():
            found = GridMLL("dense").evidence(model, x, y)
            want = ExactMLL().evidence(exact, x, y).value
        assert found.facts["solver_converged"] is True
        kinds.append(found.kind)
        if found.kind == "exact":
            assert float(found.value) == pytest.approx(float(want), abs=0.02)
        else:
            assert (found.value < want) == (kind == "lower_bound")
    assert kinds[0] == kind
    assert kinds[-1] == "exact"


def test_an_exact_evidence_has_a_bounded_error_where_a_small_residual_does_not_bound_it():
    """A block of gaps: at a residual below 1e-3 the fit errs by a share of a nat."""
    axis = torch.arange(40.0, dtype=torch.float64) / 40
    whole = torch.cartesian_prod(axis, axis)
    x = whole[~((whole >= 0.2) & (whole < 0.8)).all(1)]
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    y = (6.0 * x.sum(1)).sin() + 0.03 * noise
    for tolerance, kind in ((1e-3, "lower_bound"), (1e-5, "exact")):
        kernel = RBF(lengthscale=0.2)
        model, exact = grid_problems.pair(2, 1e-3, kernel, tolerance=tolerance)
        with torch.no_grad():
            found = GridMLL("dense", bracket=True).evidence(model, x, y)
            away = float(ExactMLL().evidence(exact, x, y).value - found.value)
        assert found.facts["solver_residual"] < 1e-3
        assert found.kind == kind
        assert -1e-6 < away < found.facts["evidence_fit_error"] + 1e-6
        assert (away < 1e-2) == (kind == "exact")
        assert found.facts["gaps"] == "fill"  # chosen by "auto"
        assert found.facts["evidence_fit_gap"] > away - 1e-6


def test_facts_name_the_method_that_was_used():
    _, x, y = grid_problems.draw(1.0)
    model, _ = grid_problems.pair(gaps="ignore")
    assert GridMLL().evidence(model, x, y).facts["gaps"] == "full"
    assert GCV().evidence(model, x, y).facts["gaps"] == "full"


def test_the_next_evaluation_starts_where_the_last_ended():
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair(tolerance=1e-8)
    objective = GridMLL("nystrom")
    first = objective.evidence(model, x, y)
    with torch.no_grad():
        next(model.parameters()).add_(1e-4)
    second = objective.evidence(model, x, y)
    assert second.facts["solver_iterations"] < 0.7 * first.facts["solver_iterations"]


def test_noise_at_its_floor_can_rise_again():
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair()
    with torch.no_grad():  # where a line search can throw it: no gradient is left there
        model.likelihood.parametrizations.noise_variance.original.fill_(-60.0)
    objective = GridMLL("dense")
    parameters = list(model.likelihood.parameters())  # the others could stand in for noise

    def minimise(lower):
        def loss():
            return -objective.evidence(model, x, y).value / len(y)

        LBFGSB().minimise(parameters, loss, 40, lambda *_: None, lower=lower)
        return objective.evidence(model, x, y).value.item()

    stuck = minimise(None)
    assert model.likelihood.noise_variance.item() < 1.01e-6
    assert minimise(lower_limits(model, parameters)) > stuck + 10.0
    assert model.likelihood.noise_variance.item() > 1e-4


@pytest.mark.parametrize("what", ["block", "scattered"])
def test_the_recorded_evidence_has_a_valid_error(what, monkeypatch):
    """809 of 32 x 32 cells, as if they were too many for "dense".

    A standard error of 40 probes is itself known to 11 %; a deviation of 3.6 of them has odds of a
    thousand to one against it. The seed is fixed.
    """
    monkeypatch.setattr(grid_system, "DENSE_POINTS", 0)
    monkeypatch.setattr(grid_system, "DENSE_WORK", 0)
    flags = scattered(32, 32, 215 / 1024)
    if what == "block":
        flags = torch.ones(32, 32)
        flags[8:22, 10:25] = 0.0
        flags[29, :5] = 0.0
    rows = masked(flags)
    x = rows.grid.rows(rows.cells)
    y = torch.randn(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel = RBF(2, [0.1, 0.1], 1.0)
    model, exact = grid_problems.pair(2, 0.05, kernel=kernel, tolerance=1e-8)
    objective = GridMLL(probes=40)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        step = objective.evidence(model, x, y)
        want = float(ExactMLL().evidence(exact, x, y).value)
    record = objective.full_evidence(model, x, y, batch_size=1)
    asked = GridMLL("nystrom", probes=40).full_evidence(model, x, y, batch_size=1)
    for found in (record, asked):  # whatever training took
        error = found.facts["logdet_standard_error"]
        assert found.facts["logdet"] == "slq_fill"
        assert 0.0 < error < 10.0
        assert abs(float(found.value) - want) < 3.6 * error
    nystrom = float(GridMLL("nystrom").evidence(model, x, y).value.detach())
    away = asked.facts["nystrom_error"]
    assert away == pytest.approx(nystrom - float(asked.value), abs=1e-6)
    if what == "block":
        assert step.facts["logdet"] == "slq_fill"
        assert step.facts["logdet_standard_error"] > 0.0
        assert "nystrom_error" not in record.facts
        assert abs(nystrom - want) > 5.0 * asked.facts["logdet_standard_error"]
    else:
        assert step.facts["logdet"] == "nystrom"
        assert record.facts["nystrom_error"] == pytest.approx(float(step.value - record.value))


def test_a_whole_axis_by_fft_keeps_its_estimate_and_states_a_bound_on_its_error():
    x = torch.linspace(0.0, 1.0, 300, dtype=torch.float64).unsqueeze(1)
    y = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = RBF(1, [0.02], 1.0)
    model, exact = grid_problems.pair(1, 0.05, kernel=kernel, fft_points=100)
    found = GridMLL("nystrom").full_evidence(model, x, y, batch_size=1)
    with torch.no_grad():
        want = float(ExactMLL().evidence(exact, x, y).value)
    assert found.facts["logdet"] == "nystrom"
    assert abs(float(found.value) - want) < 1e-3 < found.facts["logdet_error"]
    # the distance to stochastic Lanczos on the same probes, and two of its standard errors
    objective = GridMLL("nystrom")
    route = objective.sampled_route(model.gridded(x))
    sampled = GridMLL(route).evidence(model, x, y)
    away = abs(float(found.value) - float(sampled.value.detach()))
    error = sampled.facts["logdet_standard_error"]
    assert found.facts["logdet_error"] == pytest.approx(away + 2.0 * error, rel=1e-9)


def test_the_standard_error_is_that_of_the_evidence(monkeypatch):
    """Half that of the log-determinant, which ``grid_logdet`` states."""
    stated = []
    inner = mll.grid_logdet

    def watched(*arguments, **options):
        found = inner(*arguments, **options)
        stated.append(float(found.standard_error))
        return found

    monkeypatch.setattr(mll, "grid_logdet", watched)
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair()
    with torch.no_grad():
        facts = GridMLL("slq_fill").evidence(model, x, y).facts
    assert stated[0] > 0.0
    assert facts["logdet_standard_error"] == pytest.approx(0.5 * stated[0], rel=1e-12)


def test_preparing_fixes_the_probes_and_refuses_targets_that_are_not_finite():
    _, x, y = grid_problems.draw(0.6)
    model, dense = grid_problems.pair()
    values = []
    for seed in (1, 1, 2):
        objective = GridMLL("slq_fill", probes=2)
        objective.prepare(model, x, y, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            values.append(float(objective.evidence(model, x, y).value))
    assert values[0] == values[1] != values[2]
    with pytest.raises(DataError, match="1 of 72 targets are not finite"):
        GridMLL().prepare(model, x, torch.cat([y[:-1], y.new_tensor([torch.nan])]))
    with pytest.raises(ConfigError, match="objective GridMLL needs GridGP, or a model"):
        GridMLL().evidence(dense, x, y)


def test_dense_routes_ask_for_memory_first():
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair(memory_budget=7 * 72 * 72 * 8 - 1)
    with pytest.raises(ConfigError, match=r"logdet=dense factorises 72 x 72 .*logdet=auto"):
        GridMLL("dense").prepare(model, x, y)
    with pytest.raises(ConfigError, match=r"trace=dense factorises 72 x 72"):
        GCV("dense").prepare(model, x, y)
    GridMLL("nystrom").prepare(model, x, y)
    model, _ = grid_problems.pair(memory_budget=7 * 72 * 72 * 8)
    GridMLL("dense").prepare(model, x, y)


def test_probes_ask_for_memory_first():
    """One more vector per probe than fits: refused before anything is solved."""
    rows = masked(scattered(70, 70, 0.5))
    x = rows.grid.rows(rows.cells)
    vectors = grid_logdet.GRID_VECTORS + 10 * grid_logdet.PROBE_VECTORS
    for budget, fits in ((8 * 4900 * vectors, True), (8 * 4900 * (vectors - 1), False)):
        model, _ = grid_problems.pair(2, memory_budget=budget)
        if fits:
            GridMLL().prepare(model, x, x[:, 0])
        else:
            with pytest.raises(ConfigError, match=r"10 probe\(s\) at a time over 4,900 cells"):
                GridMLL().prepare(model, x, x[:, 0])


def test_dense_routes_need_no_memory_for_probes(monkeypatch):
    """They draw none, not even for the evidence on record."""
    monkeypatch.setattr(grid_logdet, "dense_is_cheap", lambda *_: False)
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair(memory_budget=7 * 72 * 72 * 8)
    for objective in (GridMLL, GCV):
        objective("dense", probes=1000).prepare(model, x, y)
        with pytest.raises(ConfigError, match=r"1000 probe\(s\) at a time"):
            objective("nystrom", probes=1000).prepare(model, x, y)


def test_float32_resolves_axes_of_a_hundred_lengthscales(monkeypatch):
    """Distances from matrix products in float32 were off by 1e-2 of the kernel there."""
    monkeypatch.setattr(grid_points, "BLOCK_NUMBERS", 13 * 300)  # 40 points in four blocks
    x = torch.arange(300, dtype=torch.float64).unsqueeze(1)
    y = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = x[:40] + 0.3
    found = {}
    for dtype in (torch.float32, torch.float64):
        kernel = RBF(1, lengthscale=3.0) * Matern32(1, lengthscale=60.0, outputscale=None)
        model = GridGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.01)).to(dtype)
        evidence = GridMLL().evidence(model, x.to(dtype), y.to(dtype))
        slopes = torch.stack([g.squeeze().double() for g in gradients(evidence.value, model)])
        variance = model.condition(x.to(dtype), y.to(dtype)).predict(at.to(dtype)).variance
        found[dtype] = evidence.value, slopes, variance.double()
    for single, double in zip(found[torch.float32], found[torch.float64], strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-5)
