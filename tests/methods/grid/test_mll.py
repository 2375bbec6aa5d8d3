"""Evidence on grids with gaps: every log-determinant, and closed-form gradients."""

import grid_problems
import pytest
import torch

from gpx.constraints import lower_limits
from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF
from gpx.kernels.over_axes import MultiOutput
from gpx.linalg import UnconvergedWarning
from gpx.methods.grid import dense as grid_dense
from gpx.methods.grid import logdet as grid_logdet
from gpx.methods.grid.axes import CartesianGrid, GriddedRows
from gpx.methods.grid.gaps import GapOptions
from gpx.methods.grid.gcv import inverse_trace
from gpx.methods.grid.gradient import bilinear_gradient
from gpx.methods.grid.logdet import choose_logdet
from gpx.methods.grid.logdet import grid_logdet as logdet_of
from gpx.methods.grid.system import GridSystem
from gpx.objectives import GCV, ExactMLL, GridMLL
from gpx.training.lbfgsb import LBFGSB

OPTIONS = GapOptions(tolerance=1e-12)


def gradient(value, model):
    return torch.autograd.grad(value, list(model.parameters()))


def system_of(share, noise=0.05):
    _, x, _ = grid_problems.draw(share)
    model, exact = grid_problems.pair(noise=noise)
    rows = model.gridded(x)
    with torch.no_grad():
        system = model.system(rows, model.axis_kernels(rows).matrices(rows.grid))
        eye = torch.eye(len(x), dtype=x.dtype)
        matrix = exact.kernel.evaluate(x) + system.noise * eye
    return system, matrix


@pytest.mark.parametrize("gaps", ["fill", "ignore", "penalize"])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_evidence_and_gradient_equal_dense_ones(gaps, share):
    _, x, y = grid_problems.draw(share)
    model, exact = grid_problems.pair(gaps=gaps, penalty=1e9, tolerance=1e-13)
    found = GridMLL("dense", bracket=True).evidence(model, x, y)
    want = ExactMLL().evidence(exact, x, y)
    tolerance = 1e-6 if gaps == "penalize" and share < 1 else 1e-8
    torch.testing.assert_close(found.value, want.value, rtol=tolerance, atol=0)
    for ours, dense in zip(gradient(found.value, model), gradient(want.value, exact), strict=True):
        torch.testing.assert_close(ours, dense, rtol=100 * tolerance, atol=1e-5)
    assert found.kind == ("estimate" if gaps == "penalize" and share < 1 else "exact")
    if gaps == "fill" and share < 1:
        assert 0.0 <= found.facts["evidence_fit_gap"] < 1e-9


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_a_grid_of_one_axis(share):
    _, points, y = grid_problems.draw(share, sizes=(30,))
    x = points.unsqueeze(1)
    model, dense = grid_problems.pair(d=1)
    found, want = GridMLL("auto").evidence(model, x, y), ExactMLL().evidence(dense, x, y)
    assert found.kind == "exact"
    torch.testing.assert_close(found.value, want.value, rtol=1e-10, atol=0)
    for a, b in zip(gradient(found.value, model), gradient(want.value, dense), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)
    near = GridMLL("nystrom").evidence(model, x, y).value
    assert float(near.detach()) == pytest.approx(float(want.value.detach()), rel=0.1)


def test_gradient_reaches_the_coregionalisation():
    x, y = grid_problems.stations()
    kernel = MultiOutput("matern32", 4, 2, [[0, 1], [2], [3]])
    model, exact = grid_problems.pair(kernel=kernel, axes=[[0, 1], [2], [3]], tolerance=1e-13)
    found = gradient(GridMLL("dense").evidence(model, x, y).value, model)
    want = gradient(ExactMLL().evidence(exact, x, y).value, exact)
    names = [name for name, _ in model.named_parameters()]
    assert any("root" in name for name in names)
    for ours, dense in zip(found, want, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-7, atol=1e-8)


def test_gradient_of_the_nystrom_route_is_its_own():
    """Central differences, every parameter."""
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair(tolerance=1e-13)
    objective = GridMLL("nystrom")
    found = gradient(objective.evidence(model, x, y).value, model)
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


@pytest.mark.parametrize(
    ("route", "rank"), [("slq_fill", None), ("slq_ignore", 0), ("slq_ignore", 20)]
)
def test_quadrature_and_its_gradient_are_exact_over_all_unit_probes(route, rank, monkeypatch):
    """sqrt(n) e_1 ... sqrt(n) e_n average to the trace itself: the estimators are unbiased."""
    system, _ = system_of(0.6)
    count = system.num_gaps if route == "slq_fill" else system.num_observed

    def units(system, rows, probes, generator):
        assert rows == probes == count
        return rows**0.5 * torch.eye(rows, dtype=torch.float64)

    monkeypatch.setattr(grid_logdet, "_probes", units)
    options = GapOptions(tolerance=1e-13, precondition_rank=rank)
    found = logdet_of(system, route, options, probes=count)
    want, slopes = grid_logdet._dense_observed(system)
    torch.testing.assert_close(found.value, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.gradient.noise, slopes.noise, rtol=1e-8, atol=0)
    for ours, dense in zip(found.gradient.factors, slopes.factors, strict=True):
        both = dense + dense.mT
        torch.testing.assert_close(ours + ours.mT, both, rtol=1e-7, atol=1e-8 * float(both.max()))


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


def test_facts_name_what_was_done_not_what_was_asked_for():
    _, x, y = grid_problems.draw(1.0)
    model, _ = grid_problems.pair(gaps="ignore")
    assert GridMLL().evidence(model, x, y).facts["gaps"] == "full"
    assert GCV().evidence(model, x, y).facts["gaps"] == "full"


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_the_identity_over_the_gaps_is_exact(share, monkeypatch):
    system, matrix = system_of(share)
    want = torch.linalg.slogdet(matrix).logabsdet
    inverse = torch.linalg.inv(matrix)
    for points in (1500, 0):  # over the observed cells; over the gaps where they are fewer
        monkeypatch.setattr(grid_dense, "DENSE_POINTS", points)
        monkeypatch.setattr(grid_dense, "BLOCK_NUMBERS", 1000)
        found = logdet_of(system, "dense", OPTIONS)
        torch.testing.assert_close(found.value, want, rtol=1e-9, atol=0)
        torch.testing.assert_close(found.gradient.noise, inverse.trace(), rtol=1e-8, atol=0)
    value, slopes = grid_logdet._dense_gaps(system)
    torch.testing.assert_close(value, want, rtol=1e-9, atol=0)
    _, want_slopes = grid_logdet._dense_observed(system)
    for ours, dense in zip(slopes.factors, want_slopes.factors, strict=True):
        # factors are symmetric: only the symmetric part of a derivative means anything
        torch.testing.assert_close(ours + ours.mT, dense + dense.mT, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("route", ["slq_fill", "slq_ignore"])
def test_quadrature_is_within_its_error_bars(route):
    system, matrix = system_of(0.6)
    found = logdet_of(system, route, OPTIONS, probes=60, generator=torch.Generator().manual_seed(1))
    want = torch.linalg.slogdet(matrix).logabsdet
    assert 0.0 < float(found.standard_error) < 5.0
    assert abs(float(found.value - want)) < 3.0 * float(found.standard_error)


@pytest.mark.parametrize(("theta", "noise"), [(0.1, 1e-2), (0.2, 1e-2), (0.2, 1e-6)])
def test_nystrom_estimate_at_half_gaps(theta, noise):
    """Below one per cent on 50 x 50 cells; exact without gaps."""
    axis = torch.linspace(0.0, 1.0, 50, dtype=torch.float64)
    factor = torch.exp(-(((axis[:, None] - axis) / theta) ** 2))
    grid = CartesianGrid((axis[:, None], axis[:, None]), ((0,), (1,)))
    order = torch.randperm(2500, generator=torch.Generator().manual_seed(0))
    for gaps in (1250, 0):
        rows = GriddedRows(grid, order[gaps:], order[:gaps].sort().values)
        system = GridSystem([factor, factor], torch.tensor(noise).double(), rows)
        found = float(logdet_of(system, "nystrom", OPTIONS).value)
        whole = torch.kron(factor, factor)[order[gaps:]][:, order[gaps:]]
        whole.diagonal().add_(system.noise)
        want = float(torch.linalg.slogdet(whole).logabsdet)
        assert found == pytest.approx(want, rel=1e-2 if gaps else 1e-9)


def test_eigenvalues_that_tie_share_the_places_left():
    """Identity factors: all eigenvalues equal; N of M of them, and the derivative is fair."""
    eye = torch.eye(4, dtype=torch.float64)
    grid = CartesianGrid((eye[:, :1], eye[:, :1]), ((0,), (1,)))
    order = torch.arange(16)
    rows = GriddedRows(grid, order[6:], order[:6])
    system = GridSystem([eye, eye], torch.tensor(0.5, dtype=torch.float64), rows)
    found = logdet_of(system, "nystrom", OPTIONS)
    share = 10 / 16
    assert float(found.value) == pytest.approx(
        10 * torch.tensor(share + 0.5).log().item(), rel=1e-6
    )
    want = share / (share + 0.5) * 10 / 16 * 4 * eye
    torch.testing.assert_close(found.gradient.factors[0], want, rtol=1e-12, atol=1e-12)


def test_bilinear_gradient_equals_autograd():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *s: torch.randn(*s, generator=generator, dtype=torch.float64)  # noqa: E731
    roots = [draw(m, m) for m in (3, 4, 2, 5)]
    factors = [r @ r.mT for r in roots]
    left, right = draw(120, 2), draw(120, 2)
    leaves = [f.clone().requires_grad_() for f in factors]
    whole = leaves[0]
    for f in leaves[1:]:
        whole = torch.kron(whole, f)
    want = torch.autograd.grad((left * (whole @ right)).sum(), leaves)
    found = bilinear_gradient(factors, left, right)
    for ours, exact in zip(found.factors, want, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.noise, (left * right).sum())


def test_the_next_evaluation_starts_where_the_last_ended():
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair(tolerance=1e-8)
    objective = GridMLL("nystrom")
    first = objective.evidence(model, x, y)
    with torch.no_grad():
        next(model.parameters()).add_(1e-4)
    second = objective.evidence(model, x, y)
    assert second.facts["solver_iterations"] < 0.7 * first.facts["solver_iterations"]


def test_noise_on_its_floor_comes_back():
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


def scattered(*shape):
    """One for observed cells, zero for a share of them (the last argument) at random."""
    *shape, share = shape
    flags = torch.ones(*shape)
    order = torch.randperm(flags.numel(), generator=torch.Generator().manual_seed(0))
    flags.view(-1)[order[: round(share * flags.numel())]] = 0.0
    return flags


def masked(flags):
    """Rows on a grid of which ``flags`` are observed."""
    axes = [torch.linspace(0.0, 1.0, m, dtype=torch.float64) for m in flags.shape]
    grid = CartesianGrid(tuple(a.unsqueeze(1) for a in axes), tuple((i,) for i in range(len(axes))))
    observed = flags.reshape(-1) > 0
    cells, gaps = observed.nonzero().squeeze(1), (~observed).nonzero().squeeze(1)
    return GriddedRows(grid, cells, gaps)


@pytest.mark.parametrize("what", ["block", "scattered"])
def test_what_goes_on_record_has_an_error_that_holds(what, monkeypatch):
    """809 of 32 x 32 cells, as if they were too many for "dense".

    A standard error of 40 probes is itself known to 11 %; a deviation of 3.6 of them has odds of a
    thousand to one against it. The seed is fixed.
    """
    monkeypatch.setattr(grid_dense, "DENSE_POINTS", 0)
    monkeypatch.setattr(grid_dense, "DENSE_WORK", 0)
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


def test_gcv_on_record_has_an_error_too():
    _, x, y = grid_problems.draw(0.65)
    model, _ = grid_problems.pair()
    objective = GCV("nystrom", probes=20)
    assert "trace_standard_error" not in objective.evidence(model, x, y).facts
    found = objective.full_evidence(model, x, y, batch_size=1)
    assert found.facts["trace"] == "hutchinson"
    assert found.facts["trace_standard_error"] > 0.0
    away = float(objective.evidence(model, x, y).value.detach() - found.value)
    assert found.facts["nystrom_error"] == pytest.approx(away, abs=1e-8)


@pytest.mark.parametrize("route", ["slq_fill", "slq_ignore"])
def test_probes_in_blocks_give_the_same(route, monkeypatch):
    """Where the grid is so large that a few columns fill memory."""
    system, _ = system_of(0.6)
    found = []
    for numbers in (2**25, 1, 3 * system.size):
        monkeypatch.setattr(grid_dense, "BLOCK_NUMBERS", numbers)
        generator = torch.Generator().manual_seed(1)
        found.append(logdet_of(system, route, OPTIONS, probes=7, generator=generator))
        if route == "slq_ignore":
            continue
        generator = torch.Generator().manual_seed(1)
        trace = inverse_trace(system, "hutchinson", OPTIONS, probes=7, generator=generator)
        assert trace.report.converged
    for other in found[1:]:
        torch.testing.assert_close(other.value, found[0].value, rtol=1e-10, atol=0)
        torch.testing.assert_close(other.standard_error, found[0].standard_error, rtol=1e-8, atol=0)
        for a, b in zip(other.gradient.factors, found[0].gradient.factors, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_routes_are_chosen_by_size_and_by_what_is_missing():
    assert choose_logdet("auto", masked(torch.ones(60, 60))) == "full"
    assert choose_logdet("auto", masked(scattered(40, 40, 0.5))) == "dense"
    few = torch.ones(60, 60)
    few[20:30, 20:30] = 0.0
    assert choose_logdet("auto", masked(few)) == "dense"  # one hundred gaps among 3600 cells
    assert choose_logdet("auto", masked(scattered(70, 70, 0.5))) == "nystrom"
    block = torch.ones(70, 70)
    block[10:60, 10:59] = 0.0
    assert choose_logdet("auto", masked(block)) == "slq_fill"
    stripes = scattered(70, 70, 0.0)
    stripes[torch.randperm(70, generator=torch.Generator().manual_seed(0))[:35]] = 0.0
    assert choose_logdet("auto", masked(stripes)) == "slq_fill"  # whole lines, in random places
    nearly = torch.zeros(300, 300)
    nearly[50:100, 50:90] = 1.0
    assert choose_logdet("auto", masked(nearly)) == "slq_ignore"
    assert choose_logdet("slq_fill", masked(scattered(6, 6, 0.5))) == "slq_fill"
    with pytest.raises(ConfigError, match="choose one of auto, nystrom"):
        GridMLL("nystroem")
    with pytest.raises(ConfigError, match="probes=0"):
        GridMLL(probes=0)
    _, x, y = grid_problems.draw(0.6)
    model, exact = grid_problems.pair()
    with pytest.raises(
        ConfigError, match="needs a model with options and warm and gridded and 4 more"
    ):
        GridMLL().check(exact)
    with pytest.raises(DataError, match="NaN or infinite"):
        GridMLL().evidence(model, x, y * torch.nan)


def test_dense_routes_ask_for_memory_first(monkeypatch):
    _, x, y = grid_problems.draw(0.6)
    model, _ = grid_problems.pair()
    monkeypatch.setattr(grid_logdet, "available_memory", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"logdet=dense factorises 72 x 72 .*logdet=auto"):
        GridMLL("dense").prepare(model, x, y)
    with pytest.raises(ConfigError, match=r"trace=dense factorises 72 x 72"):
        GCV("dense").prepare(model, x, y)
    GridMLL("nystrom").prepare(model, x, y)


def test_probes_ask_for_memory_first(monkeypatch):
    """One more vector per probe than fits: refused before anything is solved."""
    rows = masked(scattered(70, 70, 0.5))
    x = rows.grid.rows(rows.cells)
    model, _ = grid_problems.pair(2)
    model.gridded(x)
    vectors = grid_logdet.GRID_VECTORS + 10 * grid_logdet.PROBE_VECTORS
    for free, fits in ((8 * 4900 * vectors, True), (8 * 4900 * (vectors - 1), False)):
        monkeypatch.setattr(grid_logdet, "available_memory", lambda device, free=free: free)
        if fits:
            GridMLL().prepare(model, x, x[:, 0])
        else:
            with pytest.raises(ConfigError, match=r"10 probe\(s\) at a time over 4,900 cells"):
                GridMLL().prepare(model, x, x[:, 0])


# -- generalised cross-validation ----------------------------------------------------------------


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
    gcv = residual.square().mean() / ((eye - hat).trace() / n) ** 2
    assert found.facts["gcv"] == pytest.approx(float(gcv.detach()), rel=1e-10)
    want = gradient(-0.5 * n * gcv.log(), exact)
    for ours, dense in zip(gradient(found.value, model), want, strict=True):
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
    slopes = gradient(objective.evidence(model, x, y).value, model)
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


def test_gcv_knows_the_scale_of_variances_apart():
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
    GCV("dense").evidence(model, x, y)  # where the next solve starts is known
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


def test_a_scale_keeps_the_noise_above_its_floor_and_refuses_nothing_to_go_by():
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


def test_gcv_refuses_what_it_does_not_know():
    with pytest.raises(ConfigError, match="choose one of auto, nystrom"):
        GCV("exact")
    with pytest.raises(ConfigError, match="probes=0"):
        GCV(probes=0)
