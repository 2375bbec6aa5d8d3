"""Generalised cross-validation on grids with gaps."""

import grid_problems
import pytest
import torch
from grid_problems import masked, scattered, system_of
from model_gradients import gradients

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.kernels.over_axes import MultiOutput
from gpx.methods.grid import gcv
from gpx.methods.grid.gaps import GapOptions
from gpx.methods.grid.gcv import inverse_trace
from gpx.objectives import GCV

OPTIONS = GapOptions(tolerance=1e-12)


def test_recorded_gcv_has_an_error(monkeypatch):
    traces = []

    def noting(*args, **options):
        traces.append(inverse_trace(*args, **options))
        return traces[-1]

    monkeypatch.setattr(gcv, "inverse_trace", noting)
    _, x, y = grid_problems.draw(0.65)
    model, _ = grid_problems.pair()
    objective = GCV("nystrom", probes=20)
    assert "trace_standard_error" not in objective.evidence(model, x, y).facts
    found = objective.full_evidence(model, x, y, batch_size=1)
    assert found.facts["trace"] == "hutchinson"
    assert found.facts["trace_standard_error"] == float(traces[-1].standard_error) > 0.0
    away = float(objective.evidence(model, x, y).value.detach() - found.value)
    assert found.facts["nystrom_error"] == pytest.approx(away, abs=1e-8)


@pytest.mark.parametrize("share", [0.65, 1.0])
def test_gcv_equals_its_definition_and_gradient(share):
    _, x, y = grid_problems.draw(share)
    model, exact = grid_problems.pair()
    found = GCV("dense").evidence(model, x, y)
    n = len(y)
    eye = torch.eye(n, dtype=y.dtype)
    matrix = exact.kernel.evaluate(x) + exact.likelihood.noise_variance * eye
    hat = exact.kernel.evaluate(x) @ torch.linalg.inv(matrix)
    residual = (eye - hat) @ (y - exact.mean(x))
    ratio = residual.square().mean() / ((eye - hat).trace() / n) ** 2
    assert found.facts["gcv"] == pytest.approx(float(ratio.detach()), rel=1e-10)
    assert found.facts["evidence_of"] == "-N/2 log GCV in its place"
    value = -0.5 * n * float(ratio.detach().log())
    assert float(found.value.detach()) == pytest.approx(value, rel=1e-10)
    assert sum(map(float, found.parts.values())) == pytest.approx(value, rel=1e-10)
    want = gradients(-0.5 * n * ratio.log(), exact)
    for ours, dense in zip(gradients(found.value, model), want, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gaps", ["fill", "ignore", "penalize"])
@pytest.mark.parametrize("route", ["nystrom", "hutchinson"])
def test_gradient_of_estimated_gcv_with_stations_and_outputs(gaps, route):
    """Central differences along one direction, grouped axes and coregionalisation included."""
    x, y = grid_problems.stations()
    kernel = MultiOutput("matern32", 4, 2, [[0, 1], [2], [3]])
    options = {"axes": [[0, 1], [2], [3]], "gaps": gaps, "penalty": 1e3, "tolerance": 1e-13}
    model, _ = grid_problems.pair(kernel=kernel, **options)
    objective = GCV(route, probes=3)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
    slopes = gradients(objective.evidence(model, x, y).value, model)
    generator = torch.Generator().manual_seed(1)
    along = [torch.randn(s.shape, generator=generator, dtype=s.dtype) for s in slopes]
    ends = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            for p, v in zip(model.parameters(), along, strict=True):
                p.add_(step * v)
            ends.append(float(objective.evidence(model, x, y).value))
            for p, v in zip(model.parameters(), along, strict=True):
                p.sub_(step * v)
    want = sum(float((s * v).sum()) for s, v in zip(slopes, along, strict=True))
    assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(want, rel=1e-6, abs=1e-6)


def test_the_variance_scale_of_gcv_maximises_the_evidence():
    """With K and sigma^2 multiplied by it, the evidence is greatest along that scaling."""
    _, x, y = grid_problems.draw(0.65)
    model, exact = grid_problems.pair()
    scale = GCV("dense").evidence(model, x, y).facts["variance_scale"]
    slopes = []
    for factor in (scale, 2.0 * scale):
        kernel, noise = 1.7 * factor, 0.05 * factor
        with torch.no_grad():
            exact.kernel.outputscale = torch.tensor(kernel).double()
            exact.likelihood.noise_variance = torch.tensor(noise).double()
        matrix = exact.kernel.evaluate(x) + noise * torch.eye(len(y), dtype=y.dtype)
        slopes.append(float(y @ torch.linalg.solve(matrix, y).detach()) - len(y))
    assert abs(slopes[0]) < 1e-4 * len(y)
    assert slopes[1] < -0.4 * len(y)


@pytest.mark.parametrize("fixed", [True, False])
def test_predictions_under_gcv_have_the_scale_of_greatest_likelihood(fixed):
    """Against a dense model whose prior and noise carry the scale; the model itself stays."""
    _, x, y = grid_problems.draw(0.65)
    kernel = RBF(3, [0.3, 0.5, 0.4], None if fixed else 1.7)
    model, exact = grid_problems.pair(kernel=kernel)
    GCV("dense").evidence(model, x, y)
    model.warm.mul_(0.9)  # where the next solve starts; a solve that is remembered would change it
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaled = GCV("dense").for_prediction(model, x, y)
    noise = float(exact.likelihood.noise_variance.detach())
    with torch.no_grad():
        matrix = exact.kernel.evaluate(x) + noise * torch.eye(len(y), dtype=y.dtype)
        scale = float(y @ torch.linalg.solve(matrix, y)) / len(y)
        cross = exact.kernel.evaluate(x, x + 0.1)
        explained = (cross * torch.linalg.solve(matrix, cross)).sum(0)
        variance = scale * (exact.kernel.diagonal(x) - explained)
    assert abs(scale - 1.0) > 0.1
    posterior = scaled.condition(x, y)
    found = posterior.predict(x + 0.1)
    torch.testing.assert_close(found.variance, variance, rtol=1e-7, atol=1e-10)
    want = model.condition(x, y).predict(x + 0.1).mean
    torch.testing.assert_close(found.mean, want, rtol=1e-9, atol=1e-10)
    assert float(scaled.likelihood.noise_variance.detach()) == pytest.approx(
        scale * noise, rel=1e-9
    )
    assert posterior.facts()["prior_scale"] == pytest.approx(scale, rel=1e-9)
    # again it is already there, and what is trained on has not moved
    assert GCV().evidence(scaled, x, y).facts["variance_scale"] == pytest.approx(1.0, rel=1e-8)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])

    rebuilt = model.new_posterior().double()
    state = posterior.state_dict()
    rebuilt.load_state_dict(state)
    torch.testing.assert_close(rebuilt.predict(x + 0.1).variance, found.variance, rtol=0, atol=0)
    del state["prior_scale"]  # written before there was one
    rebuilt.load_state_dict(state)
    assert "prior_scale" not in rebuilt.facts()


def test_the_scale_keeps_noise_above_its_floor_and_needs_data():
    _, x, y = grid_problems.draw(0.65)
    model, _ = grid_problems.pair()
    noise = model.scaled(1e-9).likelihood.noise_variance
    assert float(noise.detach()) == pytest.approx(1e-6, rel=1e-6)
    with pytest.raises(ConfigError, match="are all targets equal"):
        GCV("dense").for_prediction(model, x, torch.zeros_like(y))


def test_gcv_does_not_change_with_a_common_scale():
    _, x, y = grid_problems.draw(0.65)
    model, _ = grid_problems.pair()
    first = GCV("nystrom").evidence(model, x, y).facts["gcv"]
    with torch.no_grad():
        model.kernel.outputscale = model.kernel.outputscale * 3.0
        model.likelihood.noise_variance = model.likelihood.noise_variance * 3.0
    assert GCV("nystrom").evidence(model, x, y).facts["gcv"] == pytest.approx(first, rel=1e-9)


@pytest.mark.parametrize("route", ["nystrom", "hutchinson"])
def test_traces_estimate_the_dense_one(route):
    system, matrix = system_of(0.7)
    value, slopes, error, _ = inverse_trace(
        system, route, OPTIONS, probes=300, generator=torch.Generator().manual_seed(0)
    )
    inverse = torch.linalg.inv(matrix)
    slack = 3.0 * float(error) if route == "hutchinson" else 0.2 * float(inverse.trace())
    assert abs(float(value - inverse.trace())) < slack
    assert float(slopes.noise) == pytest.approx(-float((inverse @ inverse).trace()), rel=0.25)


def test_a_sampled_trace_without_gaps_needs_no_iterations():
    system, matrix = system_of(1.0)
    found = inverse_trace(
        system, "hutchinson", OPTIONS, probes=300, generator=torch.Generator().manual_seed(0)
    )
    assert found.report is None
    away = abs(float(found.value - torch.linalg.inv(matrix).trace()))
    assert away < 3.0 * float(found.standard_error)


def test_a_second_solve_is_for_a_gradient_alone():
    _, x, y = grid_problems.draw(0.65)
    model, _ = grid_problems.pair()
    name = "gradient_solver_iterations"
    assert name in GCV("dense").evidence(model, x, y).facts
    with torch.no_grad():
        assert name not in GCV("dense").evidence(model, x, y).facts


@pytest.mark.parametrize(("trace", "share"), [("dense", 0.6), ("nystrom", 0.6), ("dense", 1.0)])
def test_only_a_dense_trace_has_to_fit_into_memory(trace, share):
    """Of 72 cells of 120 it takes seven matrices: refused where one number more is needed."""
    _, x, y = grid_problems.draw(share)
    model, _ = grid_problems.pair(memory_budget=7 * 72 * 72 * 8 - 1)
    if trace == "dense" and share < 1.0:
        with pytest.raises(ConfigError, match="trace=dense factorises 72 x 72"):
            GCV(trace).prepare(model, x, y)
        model, _ = grid_problems.pair(memory_budget=7 * 72 * 72 * 8)
    GCV(trace).prepare(model, x, y)


def test_targets_that_are_all_equal_have_no_residuals():
    _, x, y = grid_problems.draw(0.65)
    model, _ = grid_problems.pair()
    with pytest.raises(ConfigError, match="as all targets are equal; use objective=GridMLL"):
        GCV().prepare(model, x, torch.full_like(y, 3.0))


def test_the_trace_is_chosen_by_size_and_by_what_is_missing():
    block = torch.ones(70, 70)
    block[10:60, 10:59] = 0.0
    objective = GCV()
    assert objective._route(masked(torch.ones(60, 60))) == "full"
    assert objective._route(masked(scattered(40, 40, 0.5))) == "dense"
    assert objective._route(masked(scattered(70, 70, 0.5))) == "nystrom"
    assert objective._route(masked(block)) == "hutchinson"
    assert GCV("hutchinson")._route(masked(scattered(40, 40, 0.5))) == "hutchinson"


def test_invalid_options_and_models_are_refused():
    with pytest.raises(ConfigError, match="expected one of auto, nystrom"):
        GCV("exact")
    with pytest.raises(ConfigError, match="probes=0"):
        GCV(probes=0)
    _, x, y = grid_problems.draw(0.65)
    _, dense = grid_problems.pair()
    for asked in (GCV().evidence, GCV().for_prediction):
        with pytest.raises(ConfigError, match="objective GCV needs GridGP, or a model"):
            asked(dense, x, y)
