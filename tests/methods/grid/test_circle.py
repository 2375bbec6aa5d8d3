"""A long regular axis by FFT: exact where dense algebra is, at sizes where no matrix fits."""

import math

import pytest
import torch
from grid_problems import with_solver

from gpx.constraints import fix
from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.kernels import RBF, AxisProduct, Matern32
from gpx.kernels.over_axes import Coregionalisation
from gpx.kernels.periodic import Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.methods.grid.circle import extend_to_circle, regular_positions
from gpx.methods.grid.gaps import GapOptions, bracket, solve_gaps
from gpx.methods.grid.system import GridSystem
from gpx.models import ExactGP, GridGP
from gpx.objectives import GCV, ExactMLL, GridMLL

TIMES = 7.0 + 0.05 * torch.arange(60, dtype=torch.float64)
PLACES = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)


def table(share=0.7, seed=0):
    """Rows of 60 x 3 cells in random order; eight times are seen nowhere."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.cartesian_prod(TIMES, PLACES)
    kept = torch.rand(180, generator=generator) < share
    kept[60:84] = False
    x = whole[kept]
    x = x[torch.randperm(len(x), generator=generator)]
    return x, torch.randn(len(x), generator=generator, dtype=torch.float64)


def pair(family="matern32", lengthscale=0.1, **options):
    """A model that goes by FFT and a dense one; they share their parameters."""
    shared = {
        "kernel": AxisProduct(family, 2, lengthscale=[lengthscale, 0.5], outputscale=1.3),
        "mean": Constant(),
        "likelihood": Gaussian(0.05),
    }
    options = {"tolerance": 1e-12, "fft_points": 10} | options
    model = GridGP(**shared, **with_solver(**options)).double()
    return model, ExactGP(**shared).double()


def test_regular_points_are_found_whatever_is_missing():
    place, step = regular_positions(TIMES[[0, 1, 5, 9]])
    assert place.tolist() == [0, 1, 5, 9]
    assert step == pytest.approx(0.05)
    circle = extend_to_circle(TIMES[[0, 1, 5, 9]])
    assert (circle.inner, len(circle.points)) == (10, 20)
    torch.testing.assert_close(circle.points[circle.place], TIMES[[0, 1, 5, 9]], rtol=0, atol=0)
    torch.testing.assert_close(circle.points.diff(), torch.full((19,), 0.05).double())
    assert extend_to_circle(TIMES.square()) is None
    assert extend_to_circle(TIMES[[0, 1, 59]]) is None  # one in twenty is no regular axis
    assert extend_to_circle(TIMES[:1]) is None
    assert extend_to_circle(TIMES.float()).inner == 60
    long = torch.linspace(-1.73, 1.73, 100_000, dtype=torch.float64).float()
    seen = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) < 0.7
    seen[0] = seen[-1] = True
    place, _ = regular_positions(long[seen])
    assert torch.equal(place, seen.nonzero().squeeze(1))
    jittered = TIMES + 1e-3 * torch.randn(60, generator=torch.Generator().manual_seed(0)).double()
    assert extend_to_circle(jittered) is None


@pytest.mark.parametrize("family", ["rbf", "matern32", "matern12"])
def test_everything_equals_dense_inference(family):
    x, y = table()
    model, exact = pair(family, 0.2 if family == "rbf" else 0.06)
    rows = model.gridded(x)
    assert rows.grid.shape == (120, 3)
    assert rows.grid.inner_shape == (60, 3)
    assert rows.gap_share == pytest.approx(1.0 - len(x) / 180)
    posterior = model.condition(x, y)
    beyond = [[6.0, 0.1], [7.013, 0.3], [11.0, 0.2], [40.0, 0.3], [9.99, 2.0], [3.0, 0.0]]
    at = torch.cat([torch.cartesian_prod(TIMES, PLACES)[50:90:2], torch.tensor(beyond).double()])
    found, want = posterior.predict(at), exact.condition(x, y).predict(at)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-8)
    ignoring, _ = pair(family, 0.2 if family == "rbf" else 0.06, gaps="ignore")
    same = ignoring.condition(x, y).predict(at)
    torch.testing.assert_close(same, want, rtol=0, atol=1e-8)
    ours, dense = GridMLL("dense").evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    assert ours.kind == "exact"
    assert float(ours.value.detach()) == pytest.approx(float(dense.value.detach()), rel=1e-10)
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(ours.value, parameters),
        torch.autograd.grad(dense.value, parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("family", "lengthscale"), [("matern12", 2.0), ("matern32", 0.3)])
def test_forecasts_do_not_go_round_the_circle(family, lengthscale):
    # cells that close the circle are as near to one end as to the other; times beyond are not
    x, y = table()
    model, exact = pair(family, lengthscale)
    circle = model.gridded(x).grid.axes[0].squeeze(1)
    assert circle[0] < 6.0
    assert circle[-1] > 11.0
    at = torch.cartesian_prod(torch.cat([circle[::7], circle[4::9] + 0.013]), PLACES[:1])
    found, want = model.condition(x, y).predict(at), exact.condition(x, y).predict(at)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-9)


def test_points_between_those_of_a_long_axis_lose_no_digits():
    times = 1e6 + torch.arange(5000, dtype=torch.float64)
    x = torch.stack([times, torch.zeros_like(times)], 1)
    y = (0.3 * times).sin()
    model, exact = pair("matern12", 5.0)
    at = torch.tensor([[1e6 + 4500.25, 0.0]], dtype=torch.float64)
    found = model.condition(x, y).predict(at)
    near = (times - at[0, 0]).abs() < 200.0
    want = exact.condition(x[near] - at, y[near]).predict(torch.zeros_like(at))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("objective", [GridMLL("nystrom"), GCV("nystrom"), GCV("hutchinson", 3)])
def test_gradients_are_those_of_the_value(objective):
    x, y = table(0.9)
    model, _ = pair("matern12")
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(objective.evidence(model, x, y).value, parameters)
    for p, g in zip(parameters, gradient, strict=True):
        ends, step = [], 1e-5
        for sign in (1.0, -1.0):
            with torch.no_grad():
                p += sign * step
                ends.append(float(objective.evidence(model, x, y).value.detach()))
                p -= sign * step
        want = (ends[0] - ends[1]) / (2 * step)
        assert float(g.sum()) == pytest.approx(want, rel=2e-5, abs=1e-5)


@pytest.mark.parametrize(("family", "lengthscale"), [("rbf", 0.4), ("matern32", 0.3)])
def test_without_gaps_the_estimate_is_exact_but_for_an_exponentially_small_part(
    family, lengthscale
):
    errors = []
    for m in (30, 120):
        x = torch.cartesian_prod(0.1 * torch.arange(m, dtype=torch.float64), PLACES)
        y = torch.randn(3 * m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        model, exact = pair(family, lengthscale)
        ours, dense = GridMLL("nystrom").evidence(model, x, y), ExactMLL().evidence(exact, x, y)
        assert ours.facts["logdet"] == "nystrom"
        errors.append(abs(float((ours.value - dense.value).detach())))
        parameters = list(model.parameters())
        gradients = zip(
            torch.autograd.grad(ours.value, parameters),
            torch.autograd.grad(dense.value, parameters),
            strict=True,
        )
        errors.append(max(float((a - b).abs().max()) for a, b in gradients))
    assert errors[2] < 1e-7
    assert errors[3] < 1e-6
    assert errors[0] < 1.0


def test_with_gaps_the_estimate_is_that_of_the_axis_own_eigenvalues():
    generator = torch.Generator().manual_seed(0)
    x = torch.cartesian_prod(0.1 * torch.arange(150, dtype=torch.float64), PLACES)
    x = x[torch.rand(450, generator=generator) < 0.8]
    y = torch.randn(len(x), generator=generator, dtype=torch.float64)
    values = []
    for fft in (10, None):
        model, _ = pair("rbf", 0.5, fft_points=fft)
        values.append(float(GridMLL("nystrom").evidence(model, x, y).value.detach()))
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_quadrature_agrees_with_the_dense_determinant():
    x, y = table(0.9)
    model, _ = pair("matern12")
    exact = float(GridMLL("dense").evidence(model, x, y).value.detach())
    for route in ("slq_fill", "slq_ignore"):
        objective = GridMLL(route, probes=60)
        objective.prepare(model, x, y, generator=torch.Generator().manual_seed(3))
        found = objective.evidence(model, x, y)
        error = found.facts["logdet_standard_error"]
        assert abs(float(found.value.detach()) - exact) < 3.0 * error + 1e-6 * abs(exact)


def test_sampled_variances_and_paths_are_unbiased():
    x, y = table()
    model, exact = pair(variance="sampled", variance_samples=400)
    posterior = model.condition(x, y)
    at = torch.tensor([[11.5, 0.3], [7.5, 0.3], [8.2, 1.0], [9.013, 0.7]], dtype=torch.float64)
    want = exact.condition(x, y).predict(at)
    found = posterior.predict(at)
    on_the_axis = posterior.predict(at[1:3]).variance
    torch.testing.assert_close(on_the_axis, found.variance[1:3], rtol=1e-9, atol=0)
    torch.testing.assert_close(found.variance, want.variance, rtol=4 * math.sqrt(2 / 400), atol=0)
    paths = posterior.sample_paths(400, generator=torch.Generator().manual_seed(0))
    drawn, scatter = paths(at[:2] * 0.0 + x[:2]), exact.condition(x, y).predict(x[:2])
    deviation = scatter.variance.sqrt()
    assert float(((drawn.mean(0) - scatter.mean) / deviation).abs().max()) < 4 / math.sqrt(400)
    torch.testing.assert_close(drawn.var(0), scatter.variance, rtol=0.3, atol=0)


@pytest.mark.parametrize("gaps", ["fill", "ignore"])
@pytest.mark.parametrize(
    ("family", "lengthscale", "noise"), [("rbf", 0.2, 1e-3), ("matern12", 2.0, 1e-2)]
)
def test_sampled_variances_and_paths_hold_where_the_circle_closes(family, lengthscale, noise, gaps):
    # there covariances along the line are cut off at the seam: no process has them
    x, y = table()
    options = {"gaps": gaps, "variance": "sampled", "variance_samples": 200, "tolerance": 1e-8}
    model, exact = pair(family, lengthscale, **options)
    model.likelihood.noise_variance = torch.tensor(noise).double()
    posterior, oracle = model.condition(x, y), exact.condition(x, y)
    times = torch.tensor([2.5, 5.48, 5.6, 6.9, 10.2, 11.45, 11.613, 30.0], dtype=torch.float64)
    at = torch.stack([times, torch.full_like(times, 0.3)], 1)
    found, want = posterior.predict(at), oracle.predict(at)
    torch.testing.assert_close(found.variance, want.variance, rtol=4 * math.sqrt(2 / 200), atol=0)
    if family == "rbf":
        paths = posterior.sample_paths(200, generator=torch.Generator().manual_seed(0))(at)
        assert bool((paths.var(0) < 2.0 * want.variance).all())
        assert float((paths[:, -1] - want.mean[-1]).abs().max()) < 1e-9  # beyond any covariance
    else:
        with pytest.raises(ConfigError, match="is not negligible"):
            posterior.sample_paths(2, generator=torch.Generator().manual_seed(0))(at)


def test_both_ends_of_the_fit_hold_and_meet():
    x, y = table()
    model, exact = pair()
    rows = model.gridded(x)
    with torch.no_grad():
        system = model.system(rows, model.axis_kernels(rows).matrices(rows.grid))
        matrix = exact.kernel.evaluate(x) + 0.05 * torch.eye(len(x), dtype=x.dtype)
    fit = float(y @ torch.linalg.solve(matrix, y))
    solved = solve_gaps(system, y, GapOptions("fill", 1e-2))
    ends = bracket(system, y, solved.state)
    assert float(ends.lower) < fit < float(ends.upper)
    tight = bracket(system, y, solve_gaps(system, y, GapOptions("fill", 1e-10)).state)
    assert float(tight.upper - tight.lower) < 1e-8 * fit


def test_long_stretches_without_data_cost_few_steps(monkeypatch):
    m, generator = 2000, torch.Generator().manual_seed(0)
    x = torch.arange(m, dtype=torch.float64).unsqueeze(1) / 50.0
    seen = torch.rand(m, generator=generator) < 0.8
    seen[600:900] = False
    x, y = x[seen], torch.randn(int(seen.sum()), generator=generator, dtype=torch.float64)
    model = GridGP(
        kernel=Matern32(1, lengthscale=1.0), mean=Zero(), likelihood=Gaussian(0.05), fft_points=100
    ).double()
    steps = model.condition(x, y).report.iterations
    monkeypatch.setattr("gpx.methods.grid.gap_preconditioners.LongGaps", lambda system: None)
    plain = model.condition(x, y).report.iterations
    assert steps < 40
    assert plain > 5 * steps


def test_a_long_lengthscale_gets_a_longer_circle_or_a_warning():
    x, y = table()
    model, exact = pair("rbf", 3.0)
    assert model.gridded(x).grid.shape[0] > 4 * 60
    at = torch.tensor([[7.5, 0.3], [11.0, 0.2]], dtype=torch.float64)
    found, want = model.condition(x, y).predict(at), exact.condition(x, y).predict(at)
    torch.testing.assert_close(found.mean, want.mean, rtol=0, atol=1e-8)
    model.kernel.parts[0].lengthscale = torch.tensor([30.0]).double()
    with pytest.raises(NotPositiveDefinite, match="grid axis 0 cannot be closed to a circle"):
        model.condition(x, y)
    model.kernel.parts[0].lengthscale = torch.tensor([0.1]).double()
    assert model.gridded(x).grid.shape[0] == 120


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(2, lengthscale=[300.0, 0.5]),
        RBF(lengthscale=300.0),
        RBF(lengthscale=300.0, active_dims=[0]) * Matern32(lengthscale=0.5, active_dims=[1]),
        AxisProduct("matern32", 2, lengthscale=[300.0, 0.5]),
    ],
)
def test_a_start_with_too_long_a_lengthscale_is_shortened_and_reported(kernel):
    x, y = table()
    shared = {"mean": Zero(), "likelihood": Gaussian(0.05), "fft_points": 10}
    model = GridGP(kernel=kernel, **shared).double()
    model.initialise(x, y, generator=torch.Generator())
    assert model.note == ("lengthscale of axis 0 set to 0.03: it was too long for products by FFT")
    assert GridMLL("nystrom").evidence(model, x, y).report.converged
    model.note = ""
    model.initialise(x, y, generator=torch.Generator())
    assert not model.note


def test_a_fixed_lengthscale_is_not_shortened():
    x, y = table()
    kernel = RBF(lengthscale=300.0, active_dims=[0]) * RBF(lengthscale=0.5, active_dims=[1])
    fix(kernel, "kernels.0.lengthscale")
    shared = {"mean": Zero(), "likelihood": Gaussian(0.05), "fft_points": 10}
    model = GridGP(kernel=kernel, **shared).double()
    before = kernel.kernels[0].lengthscale.detach().clone()
    model.initialise(x, y, generator=torch.Generator())
    assert torch.equal(kernel.kernels[0].lengthscale, before)
    assert not model.note
    with pytest.raises(NotPositiveDefinite, match="grid axis 0 cannot be closed to a circle"):
        GridMLL("nystrom").evidence(model, x, y)


def test_the_lengthscale_of_a_periodic_factor_is_no_length_along_the_axis():
    x, y = table()
    kernel = Periodic(period=0.5, lengthscale=0.8, active_dims=[0])
    kernel = kernel * RBF(2, lengthscale=[300.0, 0.5])
    model = GridGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.05), fft_points=10).double()
    model.initialise(x, y, generator=torch.Generator())
    assert model.kernel.parts[1].lengthscale.tolist()[0] < 1.0
    assert model.kernel.parts[0].lengthscale.tolist() == pytest.approx(0.8)


def test_an_axis_too_long_for_a_dense_matrix():
    m = 60_000  # 29 GB of pairs
    x = torch.linspace(-1.7, 1.7, m, dtype=torch.float64).unsqueeze(1)
    x = x[torch.rand(m, generator=torch.Generator().manual_seed(0)) < 0.9]
    truth = torch.sin(60.0 * x[:, 0])
    y = truth + 0.3 * torch.randn(
        len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    kernel = RBF(1, lengthscale=0.02)
    model = GridGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.1)).double()
    settled = model.settle(x)
    assert settled["solver.gaps"][0] == "fill"
    assert "products by FFT" in settled["solver.gaps"][1]
    assert "10.0% of 60,000 cells are gaps" in settled["solver.gaps"][1]
    evidence = GridMLL().evidence(model, x, y)
    assert evidence.report.converged
    assert evidence.report.iterations < 60
    torch.autograd.grad(evidence.value, list(model.parameters()))
    mean = model.condition(x, y).predict_mean(x)
    assert float((mean - truth).square().mean().sqrt()) < 0.02


def test_only_stationary_factors_of_one_column_go_by_fft():
    generator = torch.Generator().manual_seed(0)
    whole = torch.cartesian_prod(TIMES[:12], torch.arange(12, dtype=torch.float64))
    y = torch.randn(144, generator=generator, dtype=torch.float64)
    kernel = RBF(1, lengthscale=0.1, active_dims=[0]) * Coregionalisation(12, [1])
    shared = {"mean": Zero(), "likelihood": Gaussian(0.05), "fft_points": 10}
    model = GridGP(kernel=kernel, **shared).double()
    assert model.gridded(whole).grid.inner == (12, 0)
    full = GridGP(kernel=kernel, solver=GapOptions("full"), **shared).double()
    assert full.gridded(whole).grid.inner == ()
    torch.testing.assert_close(
        model.condition(whole, y).predict_mean(whole),
        full.condition(whole, y).predict_mean(whole),
        rtol=0,
        atol=1e-5,
    )
    grouped = GridGP(kernel=RBF(2), axes=[[0, 1]], **shared).double()
    assert grouped.gridded(whole).grid.inner == ()
    periodic = Periodic(1, lengthscale=1.0, period=0.17)
    quasi = GridGP(kernel=periodic * RBF(1, lengthscale=0.1), **shared).double()
    x = TIMES.unsqueeze(1)
    assert quasi.gridded(x).grid.inner == (60,)
    exact = ExactGP(kernel=quasi.kernel, mean=Zero(), likelihood=quasi.likelihood).double()
    torch.testing.assert_close(
        quasi.condition(x, y[:60]).predict_mean(x),
        exact.condition(x, y[:60]).predict(x).mean,
        rtol=0,
        atol=1e-4,
    )
    alone = GridGP(kernel=periodic, **shared).double()
    alone.initialise(x, y[:60], generator=generator)
    assert not alone.note
    with pytest.raises(NotPositiveDefinite, match="or is periodic; start at"):
        alone.condition(x, y[:60])


def test_posteriors_survive_being_stored():
    x, y = table()
    model, _ = pair()
    posterior = model.condition(x, y)
    stored = {k: v.clone() for k, v in posterior.state_dict().items()}
    again = model.new_posterior()
    again.load_state_dict(stored)
    at = torch.tensor([[7.5, 0.3], [11.0, 0.2]], dtype=torch.float64)
    for a, b in zip(posterior.predict(at), again.predict(at), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    dense, _ = pair(fft_points=None)
    written = dense.condition(x, y)
    before = written.state_dict() | {"axis_shapes": written.axis_shapes[:, :2]}
    old = dense.new_posterior()
    old.load_state_dict(before)  # as it was written without circles
    torch.testing.assert_close(old.predict(at).mean, written.predict(at).mean, rtol=0, atol=0)


def test_float32_agrees_to_its_precision():
    x, y = table()
    model, exact = pair(tolerance=1e-5)
    posterior = model.float().condition(x.float(), y.float())
    assert model.gridded(x.float()).grid.inner == (60, 0)
    at = torch.cartesian_prod(TIMES, PLACES)[::7]
    found = posterior.predict(at.float()).mean.double()
    want = exact.double().condition(x, y).predict(at)
    torch.testing.assert_close(found, want.mean, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "options", [{"gaps": "ignore"}, {"gaps": "fill"}, {"variance": "rank_reduced"}]
)
def test_eigenpairs_are_refused(options):
    x, y = table()
    rank = {} if "variance" in options else {"precondition_rank": 5}
    model, _ = pair(**options, **rank)
    with pytest.raises(ConfigError, match="eigenpairs of the grid, and an axis that goes by FFT"):
        model.condition(x, y).predict(x[:2])
    with pytest.raises(ConfigError, match="and an axis that goes by FFT has none"):
        model.settle(x)  # before anything is trained
    with pytest.raises(ConfigError, match="fft_points=1 must be"):
        pair(fft_points=1)


def test_a_circulant_factor_that_is_not_finite_is_named():
    x, _ = table()
    model, _ = pair()
    rows = model.gridded(x)
    factors = model.axis_kernels(rows).matrices(rows.grid)
    with pytest.raises(NotPositiveDefinite, match="grid axis 0"):
        GridSystem([factors[0] * torch.nan, factors[1]], torch.tensor(0.05).double(), rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    x, y = table()
    at = torch.tensor([[7.5, 0.3], [11.0, 0.2], [8.013, 0.7]], dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        model, _ = pair()
        model.to(device)
        evidence = GridMLL("nystrom").evidence(model, x.to(device), y.to(device)).value
        gradient = torch.autograd.grad(evidence, list(model.parameters()))
        predicted = model.condition(x.to(device), y.to(device)).predict(at.to(device))
        found.append([evidence.detach(), *gradient, predicted.mean, predicted.variance])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-8, atol=1e-8)
