"""The error of the gradient of the evidence: stated against measured, and adaptive probes."""

import math
import warnings

import pytest
import torch

from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.kernels import RBF, Matern12, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import probe_vectors
from gpx.means import Zero
from gpx.methods.ski.gradients import logdet_gradient
from gpx.methods.ski.low_rank import EigenPart, PivotedPart
from gpx.methods.ski.quad_logdet import ProbedSlopes, _num_probes_needed
from gpx.methods.ski.waves import WavePart
from gpx.models import SKI
from gpx.objectives import SKIEvidence


def problem(kernel, d, lengthscale, n=400, rank=20, size=24):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    y = (6.0 * x).sin().sum(1) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    model = SKI(
        kernel=kernel(d, lengthscale, 1.0),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=d,
        grid_size=size,
        rank=rank,
    ).double()
    model.initialise(x, y, generator=generator)
    return model, x, y


def rough(n=400):
    return problem(Matern12, 2, 0.3, n)


def parameters(model):
    return [*model.kernel.parameters(), *model.likelihood.parameters()]


def slopes(model, value):
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters(model))])


@pytest.mark.parametrize(
    ("kernel", "d", "lengthscale", "rank", "kind"),
    [
        (RBF, 2, 0.2, 20, EigenPart),
        (Matern32, 2, 0.2, 20, EigenPart),
        (Matern12, 1, 0.2, 8, WavePart),
        (RBF, 1, 2.0, 3, PivotedPart),
    ],
)
def test_probe_by_probe_it_is_the_gradient_of_all(kernel, d, lengthscale, rank, kind):
    model, x, _ = problem(kernel, d, lengthscale, rank=rank)
    system = model.system(x)
    assert isinstance(system.part, kind)
    q = system.preconditioner
    draws = torch.Generator().manual_seed(1)
    xi = probe_vectors(len(system.weights.values) + q.rank, 6, generator=draws)
    w = q.draws(xi)
    u = system.solve(w, 1e-10, 1000).solution
    z = q.solve(w)
    found = ProbedSlopes(system, parameters(model))
    found.add(u[:, :2], z[:, :2])
    found.add(u[:, 2:], z[:, 2:])
    for mine, theirs in zip(found.mean(), logdet_gradient(system, u, z), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


def test_the_stated_error_is_that_of_draws():
    """Root mean square over 20 draws of 16 probes; a ratio outside is one in 10^4 (chi-square)."""
    model, x, y = rough()
    want = slopes(model, SKIEvidence(logdet="cholesky").evidence(model, x, y).value)
    off, stated = [], []
    for seed in range(20):
        objective = SKIEvidence(probes=16, most_probes=16, accuracy=1.0)
        objective.prepare(model, x, y, generator=torch.Generator().manual_seed(seed))
        found = objective.evidence(model, x, y)
        off.append((slopes(model, found.value) - want).norm())
        stated.append(found.facts["gradient_error"])
    assert min(stated) > 0.0
    complexity = -0.5 * model.system(x).dense_logdet()
    size = slopes(model, complexity).norm()
    ratio = torch.stack(off).square().mean().sqrt() / (size * torch.tensor(stated).mean())
    assert 0.6 < float(ratio) < 1.6


def test_probes_are_drawn_until_the_gradient_error_is_reached_or_one_warning(monkeypatch):
    monkeypatch.setattr("gpx.methods.ski.evidence.GRADIENT_ERROR_TARGET", 0.0)
    monkeypatch.setattr(
        "gpx.methods.ski.evidence.EVIDENCE_ERROR_TARGET", 100.0
    )  # the value asks for no more
    model, x, y = rough()
    few = SKIEvidence(accuracy=1.0)
    first = few.evidence(model, x, y).facts
    assert first["probes"] == 8
    wanted = 0.5 * first["gradient_error"]
    objective = SKIEvidence(accuracy=wanted, most_probes=1000)
    more = objective.evidence(model, x, y).facts
    assert more["probes"] >= 24
    assert more["gradient_error"] <= wanted
    with torch.no_grad():  # of the gradient that was taken last
        again = objective.evidence(model, x, y).facts
    assert again["gradient_error"] == more["gradient_error"]
    short = SKIEvidence(accuracy=wanted, most_probes=8)
    with pytest.warns(UserWarning, match="gradient of the log-determinant .* after 8 probes"):
        short.evidence(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.evidence(model, x, y)


def test_new_probes_at_every_step_average_the_error_out(monkeypatch):
    monkeypatch.setattr("gpx.methods.ski.evidence.GRADIENT_ERROR_TARGET", 0.0)
    monkeypatch.setattr("gpx.methods.ski.evidence.EVIDENCE_ERROR_TARGET", 100.0)
    model, x, y = rough()
    objective = SKIEvidence(accuracy=1e-4, resample=True)
    draws = torch.Generator().manual_seed(0)
    found = objective.evidence(model, x, y, generator=draws).facts
    assert found["probes"] == 8
    assert found["gradient_error"] > 1e-4


def test_no_gradient_error_where_the_low_rank_part_is_complete(monkeypatch):
    monkeypatch.setattr("gpx.methods.ski.quad_logdet.ProbedSlopes", None)
    model, x, y = problem(RBF, 2, 1.0, rank=None)
    found = SKIEvidence().evidence(model, x, y)
    assert found.facts["probes"] == 2
    assert "gradient_error" not in found.facts
    found.value.backward()


def test_another_run_states_no_error_of_the_one_before():
    model, x, y = rough()
    objective = SKIEvidence(accuracy=1.0)
    assert "gradient_error" in objective.evidence(model, x, y).facts
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert "gradient_error" not in objective.evidence(model, x, y).facts


def test_slopes_of_size_zero_with_an_error_say_so():
    objective = SKIEvidence()
    with pytest.warns(UserWarning, match="standard error of inf"):
        objective._record_gradient_error(1.0, 0.0, 8)
    assert float(objective.gradient_error) == float("inf")
    objective._record_gradient_error(0.0, 0.0, 8)
    assert float(objective.gradient_error) == 0.0


def test_states_saved_before_load():
    objective = SKIEvidence()
    state = objective.state_dict()
    del state["gradient_error"]
    objective.load_state_dict(state)


def test_an_error_of_two_probes_decides_nothing(monkeypatch):
    """That of two is small by chance; over 40 draws what is stated is then half of what is."""
    monkeypatch.setattr("gpx.methods.ski.evidence.GRADIENT_ERROR_TARGET", 0.0)
    monkeypatch.setattr("gpx.methods.ski.evidence.EVIDENCE_ERROR_TARGET", 100.0)
    model, x, y = problem(Matern12, 1, 0.2, rank=8)
    want = slopes(model, SKIEvidence(logdet="cholesky").evidence(model, x, y).value)
    size = slopes(model, -0.5 * model.system(x).dense_logdet()).norm()
    off, stated = [], []
    for seed in range(40):
        objective = SKIEvidence(probes=2, accuracy=0.1)
        objective.prepare(model, x, y, generator=torch.Generator().manual_seed(seed))
        found = objective.evidence(model, x, y)
        assert found.facts["probes"] >= 8
        off.append((slopes(model, found.value) - want).norm())
        stated.append(size * found.facts["gradient_error"])
    ratio = torch.stack(off).square().mean().sqrt() / torch.stack(stated).square().mean().sqrt()
    assert float(ratio) < 1.5
    few = SKIEvidence(probes=2, most_probes=4, accuracy=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert few.evidence(model, x, y).facts["probes"] == 4


@pytest.mark.parametrize(
    ("excess", "wanted"),
    [([0.5, 1.0], 8), ([2.0, 0.1], 32), ([9.0], 64), ([1e200], 64), ([math.inf, 0.1], 64)],
)
def test_large_errors_request_at_most_all_probes(excess, wanted):
    assert _num_probes_needed(8, excess, 64) == wanted


@pytest.mark.parametrize("excess", [[math.nan, 0.1], [0.1, math.nan]])
def test_errors_of_nan_are_not_taken_for_small_ones(excess):
    with pytest.raises(DidNotConverge, match="no finite standard error after 8 probes"):
        _num_probes_needed(8, excess, 64)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["kernel", "likelihood"])
def test_hyperparameters_that_are_not_finite_are_named(part, value):
    model, x, y = rough()
    name, parameter = next(getattr(model, part).named_parameters())
    with torch.no_grad():
        parameter.fill_(value)
    with pytest.raises(NotPositiveDefinite, match=f"not finite are {part}.{name};"):
        SKIEvidence().evidence(model, x, y)
