"""Fill, ignore and penalise against dense algebra; brackets; preconditioners; step counts."""

import itertools
from dataclasses import replace

import grid_problems
import pytest
import torch
from grid_problems import masked, scattered
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.data.grids.stress import rastrigin
from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg import (
    GridLowRankPlusNoise,
    LowRankPlusNoise,
    UnconvergedWarning,
    observed_grid_preconditioner,
)
from gpx.methods.grid import gap_preconditioners
from gpx.methods.grid import gaps as grid_gaps
from gpx.methods.grid.axes import CartesianGrid, GriddedRows
from gpx.methods.grid.gap_preconditioners import fill_preconditioner, ignore_preconditioner
from gpx.methods.grid.gaps import GapOptions, bracket, choose_gaps, solve_gaps
from gpx.methods.grid.system import GridSystem
from gpx.objectives import GridMLL


def dense(share=0.65, noise=0.05, seed=0):
    """A system, its dense K + sigma^2 I over cells in row order, targets, exact weights."""
    _, x, y = grid_problems.draw(share, seed=seed)
    model, _ = grid_problems.pair(noise=noise)
    rows = model.gridded(x)
    with torch.no_grad():
        system = model.system(rows, model.axis_kernels(rows).matrices(rows.grid))
        matrix = model.kernel.evaluate(x) + system.noise * torch.eye(len(x), dtype=x.dtype)
    return system, matrix, y, torch.linalg.solve(matrix, y)


def square(side, theta, noise, share, seed=0):
    """side x side cells of [0, 1]^2 under exp(-(x - z)^2 / theta^2), a share of them gaps."""
    axis = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
    factor = torch.exp(-(((axis[:, None] - axis) / theta) ** 2))
    size = side * side
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    gaps, cells = order[: round(share * size)].sort().values, order[round(share * size) :]
    grid = CartesianGrid((axis[:, None], axis[:, None]), ((0,), (1,)))
    rows = GriddedRows(grid, cells.sort().values, gaps)
    return GridSystem([factor, factor], torch.tensor(noise, dtype=torch.float64), rows)


@pytest.mark.parametrize("gaps", ["fill", "ignore"])
@pytest.mark.parametrize("share", [0.2, 0.65, 0.95])
def test_exact_strategies_equal_dense_algebra(gaps, share):
    system, _, y, alpha = dense(share)
    both = torch.stack([y, y.square()], 1)
    found = solve_gaps(system, both, GapOptions(gaps, 1e-12))
    torch.testing.assert_close(found.alpha[system.rows.cells][:, 0], alpha, rtol=1e-8, atol=1e-8)
    assert float(found.alpha[system.rows.gaps].abs().max()) < 1e-8
    torch.testing.assert_close(found.fit[0], y @ alpha, rtol=1e-9, atol=0)


def test_filled_targets_are_the_posterior_mean():
    system, _, y, alpha = dense()
    found = solve_gaps(system, y, GapOptions("fill", 1e-12))
    cells, gaps = system.rows.cells, system.rows.gaps
    eye = torch.eye(system.size, dtype=y.dtype)
    whole = system.covariance(None, None, eye)
    torch.testing.assert_close(found.state, whole[gaps][:, cells] @ alpha, rtol=1e-8, atol=1e-9)


def test_error_of_the_penalty_falls_like_its_inverse():
    system, _, y, alpha = dense()
    errors = []
    for penalty in (1e2, 1e4, 1e6):
        found = solve_gaps(system, y, GapOptions("penalize", 1e-13, penalty=penalty))
        errors.append(float((found.alpha[system.rows.cells] - alpha).norm() / alpha.norm()))
    assert errors[0] > 1e-5
    assert 50 < errors[0] / errors[1] < 200
    assert 50 < errors[1] / errors[2] < 200


def test_filling_has_the_least_expected_error_under_the_model_and_only_there():
    """Squared error at the gaps, in expectation over fields: exact, by the estimators' matrices."""
    system = square(9, 0.4, 0.1, 0.3)
    cells, gaps = system.rows.cells, system.rows.gaps
    eye = torch.eye(system.size, dtype=torch.float64)
    whole = system.covariance(None, None, eye)

    def error(options, noise):
        alpha = solve_gaps(system, eye[:, : len(cells)][: len(cells)], options).alpha
        weights = system.covariance(None, gaps, alpha)
        data = whole[cells][:, cells] + noise * eye[: len(cells), : len(cells)]
        cross = (weights * whole[gaps][:, cells]).sum()
        return float(whole.diagonal()[gaps].sum() - 2.0 * cross + (weights @ data * weights).sum())

    fill = GapOptions("fill", 1e-13)
    for noise, order in ((0.1, 1.0), (1.0, -1.0)):  # the model's own, and ten times as much
        excess = [
            order * (error(GapOptions("penalize", 1e-13, penalty=p), noise) - error(fill, noise))
            for p in (1e1, 1e2, 1e3)
        ]
        assert excess[0] > 2.0 * excess[1] > 4.0 * excess[2] > 0.0


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_both_powers_of_the_penalty_preconditioner_solve_the_same_system(power):
    system, _, y, _ = dense()
    options = GapOptions("penalize", 1e-10, penalty=1e3, precondition_power=power)
    found = solve_gaps(system, y, options).alpha
    diagonal = system.noise.expand(system.size).clone()
    diagonal[system.rows.gaps] += 1e3
    matrix = system.covariance(None, None, torch.eye(system.size, dtype=y.dtype)) + diagonal.diag()
    want = torch.linalg.solve(matrix, system.on_grid(y))
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("gaps", "sign"), [("ignore", 1.0), ("fill", -1.0)])
def test_the_fit_approaches_its_value_from_one_side_step_by_step(gaps, sign):
    system, _, y, alpha = dense(0.6, 0.01)
    fits = [
        float(
            solve_gaps(
                system,
                y,
                GapOptions(gaps, 1e-14, max_iterations=steps, precondition_rank=0),
                on_failure="return",
            ).fit
        )
        for steps in range(1, 40)
    ]
    fit = float(y @ alpha)
    steps = [sign * (b - a) for a, b in itertools.pairwise([*fits, fit])]
    assert min(steps) > -1e-9 * fit
    assert abs(fits[-1] / fit - 1.0) < 0.02 * abs(fits[0] / fit - 1.0)


def test_a_full_grid_needs_no_iteration():
    system, _, y, alpha = dense(1.0)
    found = solve_gaps(system, y, GapOptions("fill"))
    assert found.report is None
    torch.testing.assert_close(found.alpha[system.rows.cells], alpha, rtol=1e-9, atol=1e-10)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 1000),
    st.floats(0.05, 0.95),
    st.floats(1e-3, 1.0),
    st.floats(0.0, 3.0),
)
def test_any_filling_brackets_the_fit(seed, share, noise, error):
    system, _, y, alpha = dense(share, noise, seed % 7)
    generator = torch.Generator().manual_seed(seed)
    exact = solve_gaps(system, y, GapOptions("fill", 1e-12))
    if not system.num_gaps:
        return
    noise_z = torch.randn(system.num_gaps, generator=generator, dtype=y.dtype)
    ends = bracket(system, y, exact.state + error * noise_z)
    fit = float(y @ alpha)
    slack = 1e-9 * abs(fit)
    assert float(ends.lower) <= fit + slack
    assert float(ends.upper) >= fit - slack


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_unfinished_solves_err_to_a_known_side(steps):
    system, _, y, alpha = dense(0.6, 0.01)
    fit = float(y @ alpha)
    above = solve_gaps(
        system, y, GapOptions("fill", 1e-14, max_iterations=steps), on_failure="return"
    )
    below = solve_gaps(
        system,
        y,
        GapOptions("ignore", 1e-14, max_iterations=steps, precondition_rank=0),
        on_failure="return",
    )
    assert float(below.fit) < fit < float(above.fit)
    assert fit - float(below.fit) <= float(below.error)
    assert float(above.fit) - fit <= float(above.error)
    with pytest.warns(UnconvergedWarning):
        solve_gaps(system, y, GapOptions("fill", 1e-14, max_iterations=steps))


def test_the_whole_alpha_predicts_where_a_zeroed_one_fails():
    system = square(50, 0.2, 1e-6, 0.5)
    generator = torch.Generator().manual_seed(3)
    field = system.root(torch.randn(2500, generator=generator, dtype=torch.float64))
    noise = torch.randn(1250, generator=generator, dtype=torch.float64)
    y = field[system.rows.cells] + 1e-3 * noise
    gaps = system.rows.gaps

    def filled(alpha):
        return system.covariance(None, None, alpha)[gaps]

    loose, tight = (
        solve_gaps(system, y, GapOptions("fill", t), on_failure="return").alpha
        for t in (1e-6, 1e-13)
    )
    want = filled(tight)
    zeroed = loose.clone()
    zeroed[gaps] = 0.0
    assert float((filled(loose) - want).abs().max() / want.abs().max()) < 1e-5
    assert float((filled(zeroed) - want).abs().max() / want.abs().max()) > 1e-1


def test_a_warm_start_at_the_solution_takes_no_step():
    system, _, y, _ = dense()
    first = solve_gaps(system, y, GapOptions("fill", 1e-8))
    again = solve_gaps(system, y, GapOptions("fill", 1e-6), start=first.state)
    assert first.report.iterations > 5
    assert again.report.iterations == 0


@pytest.mark.parametrize("gaps", ["ignore", "penalize"])
def test_the_result_of_a_failed_solve_is_refused(gaps):
    """In float32, K + 1e-7 I is not positive definite; filling works with a diagonal that is."""
    double = square(14, 0.9, 1e-7, 0.5)
    factors = [f.float() for f in double.factors]
    system = GridSystem(factors, double.noise.float(), double.rows)
    y = torch.randn(98, generator=torch.Generator().manual_seed(0))
    text = rf"gaps={gaps} found no solution in float32 at noise variance 1.00e-07.*fill"
    with pytest.warns(UnconvergedWarning), pytest.raises(NotPositiveDefinite, match=text):
        solve_gaps(system, y, GapOptions(gaps, 1e-4, max_iterations=300))
    assert solve_gaps(system, y, GapOptions("fill", 1e-4)).report.converged
    honest = solve_gaps(system, y, GapOptions(gaps, 1e-4), on_failure="return")
    assert not honest.report.converged


def test_a_filling_solve_reports_the_true_residual(monkeypatch):
    system, _, y, _ = dense(0.6, 0.01)
    options = GapOptions("fill", 1e-6)
    honest = solve_gaps(system, y, options)
    rhs = system.inverse(system.rows.cells, system.rows.gaps, y)
    true = system.missing(honest.state) + rhs
    assert float(true.norm() / rhs.norm()) == pytest.approx(honest.report.residual, rel=1e-6)
    assert honest.report.residual <= 1e-6

    solve, called = grid_gaps.conjugate_gradients, []

    def drifting(*args, **options):
        """The first recurrence believes itself done when the truth is far from it."""
        called.append(options["verify"])
        found = solve(*args, **options)
        return found if options["verify"] else replace(found, solution=0.99 * found.solution)

    monkeypatch.setattr(grid_gaps, "conjugate_gradients", drifting)
    mended = solve_gaps(system, y, options)
    assert called == [False, True]
    assert mended.report.residual <= 1e-6
    assert mended.report.iterations > honest.report.iterations


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_ignoring_preconditioner_is_the_stated_inverse_whichever_side_is_summed(share):
    system, matrix, y, _ = dense(share)
    values, order = torch.sort((system.spectrum.shifted - system.noise), descending=True)
    columns = torch.eye(system.size, dtype=y.dtype)[:, order[:20]]
    vectors = system.eigenvectors @ columns
    low = vectors[system.rows.cells] * values[:20].sqrt()
    want = low @ low.mT + system.noise * torch.eye(len(y), dtype=y.dtype)
    q = ignore_preconditioner(system, 20)
    eye = torch.eye(len(y), dtype=y.dtype)
    inverse = torch.linalg.inv(want)
    slack = 1e-10 * float(inverse.abs().max())
    torch.testing.assert_close(q.solve(eye), inverse, rtol=0, atol=slack)
    left = vectors[system.rows.gaps]  # the Gram matrix from the gaps is that from the cells
    grams = (
        low.mT @ low,
        values[:20].sqrt()
        * (torch.eye(20, dtype=y.dtype) - left.mT @ left)
        * values[:20].sqrt().unsqueeze(1),
    )
    torch.testing.assert_close(*grams, rtol=0, atol=1e-10 * float(grams[0].abs().max()))
    whole = ignore_preconditioner(system, system.size)
    inverse = torch.linalg.inv(matrix)
    slack = 1e-10 * float(inverse.abs().max())
    torch.testing.assert_close(whole.solve(eye), inverse, rtol=0, atol=slack)


def test_a_factor_beyond_the_memory_budget_is_applied_as_a_kronecker_product():
    system, _, y, _ = dense()
    for build, count in ((ignore_preconditioner, len(y)), (fill_preconditioner, system.num_gaps)):
        held = 8 * 20 * count  # bytes of the factor
        kept, small = build(system, 20, held), build(system, 20, held - 1)
        assert isinstance(kept, LowRankPlusNoise)
        assert isinstance(small, GridLowRankPlusNoise)
        eye = torch.eye(count, dtype=y.dtype)
        want = kept.solve(eye)
        slack = 1e-10 * float(want.abs().max())
        torch.testing.assert_close(small.solve(eye), want, rtol=0, atol=slack)


def test_one_preconditioner_serves_all_solves_at_the_same_hyperparameters(monkeypatch):
    _, x, y = grid_problems.draw(0.5)
    built = []

    def counted(*arguments, form, **options):
        built.append(form)
        return observed_grid_preconditioner(*arguments, form=form, **options)

    monkeypatch.setattr(gap_preconditioners, "observed_grid_preconditioner", counted)
    model, _ = grid_problems.pair(gaps="ignore")
    GridMLL("slq_ignore").evidence(model, x, y)
    assert built == ["dense"]
    model, _ = grid_problems.pair(variance="rank_reduced", variance_rank=100, memory_budget=40_000)
    posterior = model.condition(x, y)
    built.clear()
    for _ in range(2):
        posterior.predict(x)
    assert built == ["kronecker"]  # whose factor would exceed the memory budget


def test_filling_preconditioner_is_the_stated_inverse():
    system, _, y, _ = dense()
    rank, gaps = 30, system.rows.gaps
    q = fill_preconditioner(system, rank)
    whole = torch.kron(torch.kron(*system.spectrum.vectors[:2]), system.spectrum.vectors[2])
    smallest = system.spectrum.shifted.argsort()[:rank]
    inverses = system.spectrum.shifted[smallest].reciprocal()
    shift = 0.5 * inverses.min()
    root = whole[gaps][:, smallest] * (inverses - shift).sqrt()
    eye = torch.eye(len(gaps), dtype=y.dtype)
    want = torch.linalg.inv(root @ root.mT + shift * eye)
    torch.testing.assert_close(q(eye), want, rtol=1e-10, atol=1e-10 * float(want.abs().max()))


def test_filling_preconditioner_is_positive_definite_and_changes_no_solution():
    system, _, y, alpha = dense()
    q = fill_preconditioner(system, 30)
    inverse = q.solve(torch.eye(system.num_gaps, dtype=y.dtype))
    assert float(torch.linalg.eigvalsh(inverse).min()) > 0.0
    found = solve_gaps(system, y, GapOptions("fill", 1e-12, precondition_rank=30))
    torch.testing.assert_close(found.alpha[system.rows.cells], alpha, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("share", "fill", "ranked"), [(0.01, 5, 20), (0.1, 6, 20), (0.3, 9, 18), (0.5, 13, 15)]
)
def test_step_counts_of_the_stress_test(share, fill, ranked):
    """Standardised Rastrigin on 100 x 100 cells, theta 0.1, noise variance 0.01, tolerance 1e-6."""
    system = square(100, 0.1, 1e-2, share)
    y = torch.from_numpy(rastrigin((100, 100)).ravel().copy())[system.rows.cells]
    y += 0.1 * torch.randn(len(y), generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    counts = [
        solve_gaps(system, y, options).report.iterations
        for options in (GapOptions("fill"), GapOptions("ignore", precondition_rank=300))
    ]
    assert abs(counts[0] - fill) <= max(1, 0.2 * fill)
    assert abs(counts[1] - ranked) <= max(1, 0.2 * ranked)


@pytest.mark.parametrize(("theta", "steps"), [(0.05, 157), (0.1, 24), (0.2, 15)])
def test_step_counts_of_filling_in_the_preconditioner_study(theta, steps):
    """White targets on half of 100 x 100 cells, noise variance 1e-6; no preconditioner."""
    system, y = preconditioner_study(theta)
    found = solve_gaps(system, y, GapOptions("fill")).report.iterations
    assert steps / 1.5 <= found <= steps * 1.5


@pytest.mark.parametrize(
    ("theta", "rank", "steps"),
    [
        pytest.param(0.05, 800, 2383, marks=pytest.mark.slow),
        pytest.param(0.05, 1600, 139, marks=pytest.mark.slow),
        pytest.param(0.1, 200, 3974, marks=pytest.mark.slow),
        (0.1, 400, 370),
        (0.1, 800, 5),
        pytest.param(0.1, 1600, 2, marks=pytest.mark.slow),
        pytest.param(0.2, 50, 3804, marks=pytest.mark.slow),
        (0.2, 100, 688),
        (0.2, 200, 29),
        (0.2, 400, 2),
        (0.2, 800, 2),
        pytest.param(0.2, 1600, 1, marks=pytest.mark.slow),
    ],
)
def test_step_counts_of_the_preconditioner_study(theta, rank, steps):
    """Every count below 5,000 of that study."""
    system, y = preconditioner_study(theta)
    found = solve_gaps(system, y, GapOptions("ignore", precondition_rank=rank)).report.iterations
    assert steps / 1.5 <= found <= steps * 1.5


def preconditioner_study(theta):
    """Its system and targets."""
    system = square(100, theta, 1e-6, 0.5)
    y = torch.randn(5000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return system, y


def test_auto_goes_by_the_share_of_gaps():
    auto = GapOptions()
    none, few, many, most = (masked(scattered(10, 10, share)) for share in (0, 0.05, 0.9, 0.91))
    assert choose_gaps(auto, none)[0] == "full"
    assert choose_gaps(auto, many)[0] == "fill"
    assert choose_gaps(auto, most)[0] == "ignore"
    assert choose_gaps(GapOptions("penalize"), few)[0] == "penalize"
    assert choose_gaps(GapOptions("penalize"), none)[0] == "full"
    with pytest.raises(ConfigError, match=r"gaps=full, but 5 of 100 cells"):
        choose_gaps(GapOptions("full"), few)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gaps": "fil"}, "expected one of auto"),
        ({"tolerance": 0.0}, "must be positive"),
        ({"precondition_rank": -1}, "precondition_rank=-1 must be at least 0"),
        ({"precondition_power": 2.0}, "expected one of 0.5, 1.0$"),
        ({"penalty": 0.0}, "penalty=0"),
    ],
)
def test_options_out_of_range(options, text):
    with pytest.raises(ConfigError, match=text):
        GapOptions(**options)


def test_a_factor_that_is_no_covariance_is_named():
    system, *_ = dense()
    factors = [*system.factors[:1], -system.factors[1], *system.factors[2:]]
    with pytest.raises(NotPositiveDefinite, match=r"grid axis 1 \(6 points\)"):
        GridSystem(factors, system.noise, system.rows)
