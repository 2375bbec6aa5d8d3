"""Conjugate gradients against dense solves and golden histories; no outcome goes unreported."""

import warnings

import golden_g1 as g1
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, DidNotConverge, DTypeError, NotPositiveDefinite, ShapeError
from gpx.linalg import (
    AbsoluteResidual,
    EvidenceBound,
    LowRankPlusNoise,
    PosteriorMeanError,
    ProductsPlusNoise,
    RelativeResidual,
    UnconvergedWarning,
    conjugate_gradients,
    nystrom_preconditioner,
)
from gpx.linalg.cg_iteration import CGIteration
from gpx.linalg.stopping import Residual


class Counted:
    def __init__(self, matrix):
        self.matrix, self.calls, self.dtypes = matrix, 0, []

    def __call__(self, vectors):
        self.calls += 1
        self.dtypes.append(vectors.dtype)
        return self.matrix.to(vectors.dtype) @ vectors


def spd(n, condition=100.0, seed=0, batch=()):
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(*batch, n, n, generator=generator, dtype=torch.float64))
    values = torch.logspace(0, torch.tensor(condition).log10().item(), n, dtype=torch.float64)
    return (q * values) @ q.mT


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relative(matrix, solution, rhs):
    gap = torch.linalg.vector_norm(rhs - matrix @ solution, dim=-2)
    return gap / torch.linalg.vector_norm(rhs, dim=-2)


# --- golden ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "steps"), [(1.0, 1), (1e-3, 3), (1e-6, 4)])
def test_history_of_the_golden_fixture_with_its_preconditioner(epsilon, steps):
    q = nystrom_preconditioner(g1.K_zz, g1.K_zx, g1.NOISE)
    found = conjugate_gradients(g1.K.matmul, g1.y, preconditioner=q, stop=EvidenceBound(epsilon))
    golden = [89.03209242, 0.9175964454, 1.741399922e-3, 2.14680e-5, 6.30192e-9]
    expected = torch.tensor(golden[: steps + 1], dtype=torch.float64)
    assert found.report.iterations == steps
    torch.testing.assert_close(found.history, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("epsilon", "steps"), [(1.0, 17), (1e-3, 24), (1e-6, 30)])
def test_gibbs_and_mackays_criterion(epsilon, steps):
    stop = EvidenceBound(epsilon, noise_variance=g1.NOISE)
    assert conjugate_gradients(g1.K.matmul, g1.y, stop=stop).report.iterations == steps


def test_the_bounds_hold_at_every_step():
    q = nystrom_preconditioner(g1.K_zz, g1.K_zx, g1.NOISE)
    exact = torch.linalg.solve(g1.K, g1.y)
    test_points = torch.linspace(-1.0, 11.0, 100, dtype=torch.float64)
    cross = g1.covariance(test_points, g1.x)
    for steps in range(4):
        for rule in (EvidenceBound(1e-14), PosteriorMeanError(1e-14, g1.VARIANCE)):
            found = conjugate_gradients(
                g1.K.matmul,
                g1.y,
                preconditioner=q,
                stop=rule,
                max_iterations=steps,
                on_failure="return",
            )
            bound = float(found.history[-1])
            v, r = found.solution, found.residual
            if isinstance(rule, EvidenceBound):
                gap = 0.5 * float(g1.y @ exact - v @ (g1.y + r))
                assert -1e-9 <= gap <= bound + 1e-9
            else:
                assert float((cross @ (v - exact)).abs().max()) <= bound


def test_rounding_of_a_squared_error_below_zero_is_a_small_error():
    gamma = torch.tensor([-1e-20, 1e-20, -1.0])
    residual = Residual(torch.zeros(3, 3), gamma, torch.ones(3), scale=torch.ones(3))
    measure = PosteriorMeanError(1e-3, 4.0).measure(residual)
    torch.testing.assert_close(measure, torch.tensor([2e-10, 2e-10, 2.0]))


# --- solutions ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 40),
    columns=st.integers(1, 5),
    condition=st.floats(1.0, 1e5),
    seed=st.integers(0, 100),
    warm=st.booleans(),
    check_every=st.integers(1, 7),
)
def test_solutions_against_dense(n, columns, condition, seed, warm, check_every):
    matrix, rhs = spd(n, condition, seed), randn(n, columns, seed=seed + 1)
    found = conjugate_gradients(
        matrix.matmul,
        rhs,
        x0=randn(n, columns, seed=seed + 2) if warm else None,
        stop=RelativeResidual(1e-9),
        check_every=check_every,
    )
    assert found.report.converged
    assert bool(found.converged.all())
    assert float(relative(matrix, found.solution, rhs).max()) <= 1e-9
    torch.testing.assert_close(found.residual, rhs - matrix @ found.solution, rtol=0, atol=1e-9)
    assert found.history.shape[0] == found.report.iterations + 1


def test_looking_at_the_host_less_often_changes_nothing_but_the_products():
    matrix, rhs = spd(60), randn(60, 3)
    often = conjugate_gradients(matrix.matmul, rhs, check_every=1)
    seldom = conjugate_gradients(matrix.matmul, rhs, check_every=25)
    assert torch.equal(often.solution, seldom.solution)
    assert torch.equal(often.iterations, seldom.iterations)
    assert torch.equal(often.history, seldom.history)
    assert seldom.products % 25 == 1
    assert often.products == often.report.iterations + 1


def test_products_are_counted_and_the_zero_start_is_free():
    matrix, rhs = Counted(spd(50)), randn(50)
    found = conjugate_gradients(matrix, rhs, max_iterations=7, on_failure="return")
    assert matrix.calls == found.products == 7 + 1  # the last one is the true residual
    trusting = Counted(spd(50))
    conjugate_gradients(trusting, rhs, max_iterations=7, on_failure="return", verify=False)
    assert trusting.calls == 7
    exact = Counted(spd(50))
    start = torch.linalg.solve(exact.matrix, rhs)
    warm = conjugate_gradients(exact, rhs, x0=start)
    assert (warm.report.iterations, exact.calls) == (0, 1)


@pytest.mark.parametrize(
    ("inputs", "n", "steps"),
    [
        (1, 1000, 138),
        (1, 5000, 184),
        (2, 1000, 780),
        pytest.param(2, 4000, 1360, marks=pytest.mark.slow),
    ],
)
def test_steps_for_squared_exponential_matrices_are_as_known(inputs, n, steps):
    """Inputs uniform over 20 lengthscales, noise variance 1e-3, within 20 %."""
    generator = torch.Generator().manual_seed(0)
    x = 20.0 * torch.rand(n, inputs, generator=generator, dtype=torch.float64)
    matrix = torch.exp(-0.5 * torch.cdist(x, x).square()) + 1e-3 * torch.eye(n).double()
    stop = RelativeResidual(1e-6)
    found = conjugate_gradients(matrix, randn(n), stop=stop, max_iterations=2 * steps)
    assert found.report.iterations == pytest.approx(steps, rel=0.2)


def test_converged_columns_are_frozen_and_zero_columns_cost_nothing():
    matrix = torch.diag(torch.linspace(1, 50, 50, dtype=torch.float64))
    rhs = torch.zeros(50, 3, dtype=torch.float64)
    rhs[4, 0] = 1.0  # an eigenvector: one step
    rhs[:, 2] = 1.0
    found = conjugate_gradients(matrix.matmul, rhs)
    assert found.iterations[:2].tolist() == [1, 0]
    assert int(found.iterations[2]) > 5
    assert bool((found.solution[:, 1] == 0).all())
    assert float(found.history[2:, 0].max()) == float(found.history[-1, 0])
    assert bool((found.step_sizes[1:, 0] == 0).all())


def test_batches_of_matrices_and_vectors_alone():
    matrix, rhs = spd(20, batch=(3, 2)), randn(3, 2, 20, 4)
    found = conjugate_gradients(matrix.matmul, rhs, stop=RelativeResidual(1e-10))
    torch.testing.assert_close(found.solution, torch.linalg.solve(matrix, rhs))
    assert found.iterations.shape == found.converged.shape == (3, 2, 4)
    alone = conjugate_gradients(matrix[0, 0].matmul, rhs[0, 0, :, 0], stop=RelativeResidual(1e-10))
    assert alone.solution.shape == (20,)
    assert alone.history.ndim == 1
    torch.testing.assert_close(alone.solution, found.solution[0, 0, :, 0])


def test_the_quadratic_lower_bound_rises_along_the_iterations():
    matrix, rhs = spd(40, 1e4), randn(40)
    values = []
    for steps in range(0, 40, 3):
        found = conjugate_gradients(
            matrix.matmul,
            rhs,
            max_iterations=steps,
            on_failure="return",
            stop=RelativeResidual(1e-12),
        )
        values.append(float(found.solution @ (rhs + found.residual)))
    assert values == sorted(values)
    assert values[-1] <= float(rhs @ torch.linalg.solve(matrix, rhs)) * (1 + 1e-10)


def test_float32_products_under_float64_recurrences_reach_a_float64_residual():
    matrix, rhs = Counted(spd(80, 300.0)), randn(80, 2)
    found = conjugate_gradients(
        matrix, rhs, product_dtype=torch.float32, stop=RelativeResidual(1e-11)
    )
    assert float(relative(matrix.matrix, found.solution, rhs).max()) <= 1e-11
    assert found.solution.dtype == torch.float64
    double = sum(d == torch.float64 for d in matrix.dtypes)
    assert 0 < double < 0.2 * matrix.calls
    assert found.undisturbed < found.report.iterations


def test_refreshing_the_residual_keeps_the_solution_and_restarting_costs_steps():
    matrix, rhs = spd(60, 1e3), randn(60, 2)
    steps = {}
    for every, restart in ((None, False), (10, False), (10, True)):
        found = conjugate_gradients(
            matrix.matmul, rhs, refresh_every=every, restart=restart, stop=RelativeResidual(1e-8)
        )
        assert float(relative(matrix, found.solution, rhs).max()) <= 1e-8
        steps[every, restart] = found.report.iterations
        assert found.undisturbed == (10 if every else found.report.iterations)
    assert steps[10, False] <= 1.3 * steps[None, False] < steps[10, True]


def test_float32_runs_and_reports_its_own_dtype():
    matrix, rhs = spd(40, 10.0).float(), randn(40, 2).float()
    found = conjugate_gradients(matrix.matmul, rhs, stop=RelativeResidual(1e-5))
    assert found.solution.dtype == torch.float32
    assert float(relative(matrix.double(), found.solution.double(), rhs.double()).max()) < 1.1e-5


@pytest.mark.parametrize("scale", [1e-170, 1e170])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_columns_of_any_scale_are_solved_alike(scale, preconditioned):
    matrix, column = spd(30), randn(30)
    rhs = torch.stack([column, scale * column, 0.0 * column], -1)
    q = (lambda r: r / matrix.diagonal().unsqueeze(-1)) if preconditioned else None
    found = conjugate_gradients(matrix.matmul, rhs, preconditioner=q)
    assert abs(int(found.iterations[1] - found.iterations[0])) <= 2
    assert int(found.iterations[0]) > 5
    assert bool((found.solution[:, 2] == 0).all())
    torch.testing.assert_close(
        found.solution[:, 1] / scale, found.solution[:, 0], rtol=1e-4, atol=1e-5
    )
    true = torch.linalg.vector_norm(column - matrix @ (found.solution[:, 1] / scale))
    assert float(true / column.norm()) <= 1e-6


@pytest.mark.parametrize("scale", [1e-25, 1e-18, 1e25])
def test_float32_columns_whose_squares_leave_the_range(scale):
    matrix, column = spd(30, 10.0).float(), randn(30).float()
    found = conjugate_gradients(matrix.matmul, scale * column, stop=RelativeResidual(1e-5))
    exact = torch.linalg.solve(matrix.double(), column.double())
    assert found.report.iterations > 5
    torch.testing.assert_close(found.solution.double() / scale, exact, rtol=1e-3, atol=1e-4)
    reduced = conjugate_gradients(
        lambda v: matrix.to(v.dtype) @ v,
        scale**2 * column.double(),
        product_dtype=torch.float32,
        stop=RelativeResidual(1e-10),
    )
    torch.testing.assert_close(
        matrix.double() @ reduced.solution / scale**2, column.double(), rtol=0, atol=1e-8
    )


def test_absolute_rules_measure_in_the_unit_of_the_right_hand_sides():
    matrix, rhs = spd(40, 1e3), randn(40, 3) * torch.tensor([1e-3, 1.0, 1e3])
    q = LowRankPlusNoise(randn(2, 40), 1.0)
    for stop in (
        AbsoluteResidual(1e-2),
        EvidenceBound(1e-2),
        EvidenceBound(1e-2, noise_variance=1),
    ):
        found = conjugate_gradients(matrix.matmul, rhs, preconditioner=q, stop=stop)
        r = found.residual
        if isinstance(stop, AbsoluteResidual):
            expected = torch.linalg.vector_norm(r, dim=0)
        else:
            expected = 0.5 * (r * (q.solve(r) if stop.needs_preconditioner else r)).sum(0)
        assert float(expected.max()) <= 1e-2
        torch.testing.assert_close(found.history[-1], expected, rtol=1e-5, atol=0)
    assert found.iterations.tolist() == sorted(found.iterations.tolist())


def test_a_zero_side_ends_at_zero_whatever_its_start():
    matrix = spd(30)
    rhs = torch.stack([randn(30), torch.zeros(30, dtype=torch.float64)], -1)
    found = conjugate_gradients(matrix.matmul, rhs, x0=randn(30, 2, seed=4))
    assert bool((found.solution[:, 1] == 0).all())
    assert int(found.iterations[1]) == 0
    assert bool(found.converged.all())


@pytest.mark.parametrize("shape", [(30,), (30, 2)])
def test_a_preconditioner_may_return_its_argument_or_a_buffer_of_its_own(shape):
    matrix, rhs = spd(30), randn(*shape)
    plain = conjugate_gradients(matrix.matmul, rhs)
    buffer = torch.empty_like(rhs)
    for q in (lambda r: r, lambda r: r.view(shape), buffer.copy_):
        found = conjugate_gradients(matrix.matmul, rhs, preconditioner=q)
        torch.testing.assert_close(found.solution, plain.solution, rtol=1e-8, atol=1e-8)


def test_a_dense_matrix_itself_in_place_of_its_product():
    matrix, rhs = spd(30), randn(30, 3)
    tight = RelativeResidual(1e-12)  # a solve that stops early amplifies the order of additions
    for b in (rhs, rhs[:, 0]):
        torch.testing.assert_close(
            conjugate_gradients(matrix, b, stop=tight).solution,
            conjugate_gradients(matrix.matmul, b, stop=tight).solution,
        )
    batch, sides = spd(12, batch=(2,)), randn(2, 12, 3)
    torch.testing.assert_close(
        conjugate_gradients(batch, sides, stop=RelativeResidual(1e-10)).solution,
        torch.linalg.solve(batch, sides),
    )
    mixed = conjugate_gradients(
        matrix, rhs, product_dtype=torch.float32, stop=RelativeResidual(1e-11)
    )
    assert float(relative(matrix, mixed.solution, rhs).max()) <= 1e-11
    with pytest.raises(ShapeError, match=r"\(30, 30\) does not fit 29 rows"):
        conjugate_gradients(matrix, rhs[1:])
    with pytest.raises(DTypeError, match="the matrix is"):
        conjugate_gradients(matrix.float(), rhs)


def test_steps_with_a_dense_matrix_take_no_new_memory_of_the_size_of_the_vectors():
    matrix, rhs = spd(64), randn(64, 8)
    state = CGIteration(matrix, rhs, None, None, RelativeResidual(1e-12), None)
    state.begin()
    state.step()
    places = {name: getattr(state, name).data_ptr() for name in ("x", "r", "p")}
    buffer = state.product(state.p).data_ptr()
    state.step()
    assert places == {name: getattr(state, name).data_ptr() for name in places}
    assert state.product(state.p).data_ptr() == buffer


# --- failures ----------------------------------------------------------------------------------


def test_too_few_steps_raise_warn_or_return():
    matrix, rhs = spd(60, 1e4), randn(60)
    with pytest.raises(DidNotConverge, match=r"n = 60.*after 5 steps.*5 steps were not enough"):
        conjugate_gradients(matrix.matmul, rhs, max_iterations=5)
    with pytest.warns(UnconvergedWarning, match="relative residual norm"):
        conjugate_gradients(matrix.matmul, rhs, max_iterations=5, on_failure="warn")
    found = conjugate_gradients(matrix.matmul, rhs, max_iterations=5, on_failure="return")
    assert not found.report.converged
    true = float(relative(matrix, found.solution[:, None], rhs[:, None]))
    assert found.report.residual == pytest.approx(true, rel=1e-12)


def test_a_recurrence_that_rounding_broke_is_not_blamed_on_the_number_of_steps():
    """The preconditioner's form is negative once on the way and positive for the true residual."""
    calls = []

    def wavering(r):
        calls.append(r)
        return -r if len(calls) == 4 else r

    with pytest.raises(NotPositiveDefinite, match=r"after 3 steps: rounding broke the recurrence"):
        conjugate_gradients(spd(20), randn(20), preconditioner=wavering)


def test_a_tolerance_below_rounding_is_reported_as_stagnation():
    matrix, rhs = spd(50, 1e6), randn(50)
    with pytest.raises(DidNotConverge, match=r"stagnation.*float64"):
        conjugate_gradients(matrix.matmul, rhs, stop=RelativeResidual(1e-17), max_iterations=5000)
    trusting = conjugate_gradients(
        matrix.matmul, rhs, stop=RelativeResidual(1e-17), max_iterations=5000, verify=False
    )
    true = float(relative(matrix, trusting.solution[:, None], rhs[:, None]))
    assert true > 1e-17  # what the recurrence claims and the truth differ: hence ``verify``


@pytest.mark.parametrize("shift", [-5.0, -200.0])
def test_an_indefinite_matrix_is_named(shift):
    matrix = spd(30) + shift * torch.eye(30, dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="direction has curvature -"):
        conjugate_gradients(matrix.matmul, randn(30, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_that_rounding_may_have_made_indefinite_is_tried_in_float64(dtype):
    matrix = (spd(30) - 200.0 * torch.eye(30, dtype=torch.float64)).to(dtype)
    with pytest.raises(NotPositiveDefinite) as raised:
        conjugate_gradients(matrix.matmul, randn(30).to(dtype))
    assert ("use dtype=float64 or add a positive" in str(raised.value)) == (dtype == torch.float32)


def test_a_singular_matrix_is_solved_in_its_range_and_refused_outside():
    basis = randn(30, 10)
    matrix = basis @ basis.mT
    inside = matrix @ randn(30)
    found = conjugate_gradients(matrix.matmul, inside)
    torch.testing.assert_close(matrix @ found.solution, inside, rtol=1e-5, atol=1e-4)
    with pytest.raises((DidNotConverge, NotPositiveDefinite)):
        conjugate_gradients(matrix.matmul, randn(30, seed=9), max_iterations=200)
    with pytest.raises(NotPositiveDefinite, match="curvature 0"):
        conjugate_gradients(torch.zeros_like, randn(30))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["matrix", "rhs"])
def test_values_that_are_not_finite_are_named(value, where):
    matrix, rhs = spd(10), randn(10, 2)
    if where == "matrix":
        matrix[2, 3] = value
    else:
        rhs[1, 1] = value
    with pytest.raises(DidNotConverge, match="NaN or infinite"):
        conjugate_gradients(matrix.matmul, rhs)


@pytest.mark.parametrize("stop", [RelativeResidual(), EvidenceBound(1.0)])
def test_an_indefinite_preconditioner_is_named(stop):
    with pytest.raises(NotPositiveDefinite, match="preconditioner is not positive definite"):
        conjugate_gradients(spd(10).matmul, randn(10), preconditioner=lambda r: -r, stop=stop)


def test_bad_arguments():
    matrix, rhs = spd(5), randn(5)
    with pytest.raises(ConfigError, match="certifies nothing"):
        conjugate_gradients(matrix.matmul, rhs, stop=EvidenceBound(1.0))
    with pytest.raises(ConfigError, match="must be positive, got 0"):
        AbsoluteResidual(0.0)
    for name in ("check_every", "refresh_every"):
        with pytest.raises(ConfigError, match=f"{name}=0 must be at least 1"):
            conjugate_gradients(matrix.matmul, rhs, **{name: 0})
    for bound in (
        lambda v: EvidenceBound(1.0, noise_variance=v),
        lambda v: PosteriorMeanError(1.0, v),
    ):
        with pytest.raises(ConfigError, match="variance must be positive, got -1"):
            bound(-1.0)
    with pytest.raises(ShapeError, match=r"x0 \(5, 3\)"):
        conjugate_gradients(matrix.matmul, randn(5, 2), x0=randn(5, 3))
    with pytest.raises(ShapeError, match="the preconditioner returned"):
        conjugate_gradients(matrix.matmul, rhs, preconditioner=lambda r: r[:3])
    with pytest.raises(DidNotConverge, match="preconditioner's solves"):
        conjugate_gradients(matrix.matmul, rhs, preconditioner=lambda r: r * float("nan"))
    with pytest.raises(ConfigError, match="on_failure"):
        conjugate_gradients(matrix.matmul, rhs, on_failure="ignore")
    with pytest.raises(DTypeError, match="floating"):
        conjugate_gradients(matrix.matmul, torch.ones(5, dtype=torch.long))
    with pytest.raises(DTypeError, match="x0"):
        conjugate_gradients(matrix.matmul, rhs, x0=rhs.float())
    with pytest.raises(ShapeError, match="x0"):
        conjugate_gradients(matrix.matmul, rhs, x0=randn(4))
    with pytest.raises(ShapeError, match="matmul returned"):
        conjugate_gradients(lambda v: v[:3], rhs)


def test_residual_per_row():
    matrix, rhs = spd(40, 1e3), randn(40)
    found = conjugate_gradients(matrix.matmul, rhs, stop=AbsoluteResidual(1e-3, per_row=True))
    assert 1e-3 < float(found.residual.norm()) <= 40e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_synchronisation_between_the_checks_on_a_gpu():
    matrix, rhs = spd(60).cuda(), randn(60, 3).cuda()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        state = CGIteration(matrix.matmul, rhs, None, None, RelativeResidual(), None)
        state.begin()
        for _ in range(5):
            state.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = conjugate_gradients(matrix.matmul, rhs)
    assert float(relative(matrix, found.solution, rhs).max()) <= 1e-6


def test_records_of_steps_lie_in_few_blocks():
    """One small tensor kept per step would scatter over the heap between the steps' vectors."""
    state = CGIteration(spd(200, 1e8), randn(200, 3), None, None, RelativeResidual(1e-30), None)
    state.begin()
    gammas = [state.gamma]
    for _ in range(130):
        state.step()
        gammas.append(state.gamma)
    for records in (state.ratios, state.step_sizes, state.measures):
        assert len(records._blocks) == 3
    want = torch.stack(gammas[1:]) / torch.stack(gammas[:-1])
    torch.testing.assert_close(state.ratios.stacked(), want)
    state.ratios.truncate(7)
    torch.testing.assert_close(state.ratios.stacked(), want[:7])


@pytest.mark.parametrize("preconditioned", [False, True])
def test_the_residual_is_judged_once_a_step(preconditioned):
    class Once(RelativeResidual):
        judged = 0

        def measure(self, residual):
            self.judged += 1
            return super().measure(residual)

    matrix, rhs, stop = spd(40), randn(40, 3), Once(1e-8)
    q = (lambda r: r / matrix.diagonal().unsqueeze(-1)) if preconditioned else None
    found = conjugate_gradients(matrix, rhs, preconditioner=q, stop=stop, verify=False)
    assert found.report.iterations > 5
    assert stop.judged == found.report.iterations + 1


@pytest.mark.parametrize("shape", [(50,), (50, 3), (2, 50, 3)])
def test_long_inner_products_are_summed_in_parts(monkeypatch, shape):
    matrix = spd(50, batch=shape[:-2])
    rhs = randn(*shape)
    want = conjugate_gradients(matrix.matmul, rhs, stop=RelativeResidual(1e-11))
    monkeypatch.setattr("gpx.linalg.cg_iteration.MIN_SUMMED_ROWS", 8)
    monkeypatch.setattr("gpx.linalg.cg_iteration.MAX_CACHED_ENTRIES", 8)
    found = conjugate_gradients(matrix.matmul, rhs, stop=RelativeResidual(1e-11))
    torch.testing.assert_close(found.solution, want.solution, rtol=1e-10, atol=1e-12)


def test_no_step_takes_memory_of_the_size_of_its_vectors():
    """Beside what the product and the preconditioner return, which here are their own buffers."""
    matrix, rhs = spd(400), randn(400, 5)
    buffer = torch.empty_like(rhs)
    state = CGIteration(
        matrix, rhs, lambda r: torch.mul(r, 0.5, out=buffer), None, RelativeResidual(1e-30), None
    )
    state.begin()
    state.step(looking=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        state.step(looking=True)
    taken = [
        event.nbytes()
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    assert taken
    assert max(taken) < 400 * 8


def test_no_direction_is_made_after_the_last_step():
    """As many preconditioner solves as steps, and half of one for the last coefficient."""
    z = randn(30, 4)
    factor = (z @ torch.linalg.cholesky(z.mT @ z).mT.inverse()).mT
    noise, right = torch.tensor(0.3, dtype=torch.float64), randn(30, 2)
    matrix = factor.mT @ factor + noise * torch.eye(30) + 0.01 * spd(30)
    solves = []

    def expand(low):
        solves.append(low)
        return factor.mT @ low

    q = ProductsPlusNoise(factor.matmul, expand, factor @ factor.mT, 30, noise)
    found = conjugate_gradients(matrix.matmul, right, preconditioner=q, verify=False)
    assert found.report.iterations > 1
    assert len(solves) == found.report.iterations
    every = conjugate_gradients(matrix.matmul, right, preconditioner=q.solve, verify=False)
    assert torch.allclose(found.solution, every.solution, rtol=1e-13, atol=1e-14)
    assert torch.allclose(found.ratios, every.ratios, rtol=1e-9, atol=0.0)
