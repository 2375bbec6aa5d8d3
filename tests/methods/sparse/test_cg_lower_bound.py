"""Conjugate gradient lower bound: golden values, orderings, gradients, refresh modes, bad input."""

import copy
import math
import pickle

import golden_g1 as g1
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from largest_tensor import Largest
from model_gradients import KERNELS
from sparse_problems import sparse_problem

from gpx.errors import ConfigError, DataError, NotPositiveDefinite
from gpx.inference import nystrom
from gpx.inference.auxiliary import Auxiliary, AuxiliarySolver
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern32, Matern52
from gpx.likelihoods import Gaussian, StudentT
from gpx.means import Zero
from gpx.methods.sparse import cg_lower_bound as module
from gpx.methods.sparse.cg_lower_bound import cg_lower_bound
from gpx.models import CGLB, SGPR, ExactGP
from gpx.objectives import CGLowerBound, CollapsedELBO, ExactMLL
from gpx.training import LBFGSB

FORMS = ("trace_error", "preconditioned_trace")


def problem(kernel=None, n=60, m=10, noise=0.07, seed=0, **options):
    options = {"kernel": kernel, "noise": noise, "seed": seed, "num_data": n, **options}
    return sparse_problem(CGLB, n, m, **options)


def golden():
    """Fixture G1: 200 points on [0, 10], 20 inducing points."""
    return g1.sparse_model(CGLB, num_data=200), g1.x[:, None], g1.y


def at(model, x, y, v, form="trace_error", budget=2**30):
    """The bound at a given v, with its graph."""
    solver = AuxiliarySolver(memory_budget=budget)
    target, noise = y - model.mean(x), model.likelihood.noise_variance
    z = model.inducing_points
    with torch.no_grad():
        q = NystromMatrix.of(
            model.kernel, x, z, target, noise, jitter=model.jitter, memory_budget=budget
        )
        matrix = solver.matrix(model.kernel, x, noise)
        found = solver.keep(matrix, q, target, v)
    assert isinstance(found, Auxiliary)
    terms, gradient = cg_lower_bound(
        model.kernel, x, z, target, found, matrix, q, log_determinant=form, gradient=True
    )
    inputs = [target, noise, *gradient.kernel.inputs()]
    known = [gradient.residual, gradient.noise, *gradient.kernel.gradients()]
    return sum(terms), inputs, known


def dense(model, x, y, v, form):
    """The same by dense algebra, differentiable by autograd."""
    z, s, n = model.inducing_points, model.likelihood.noise_variance, len(x)
    eye = torch.eye(n, dtype=x.dtype)
    gram = model.kernel.evaluate(z, z)
    gram = gram + (model.jitter or 0.0) * gram.diagonal().mean() * torch.eye(len(z), dtype=x.dtype)
    cross = model.kernel.evaluate(z, x)
    low_rank = cross.mT @ torch.linalg.solve(gram, cross)
    q, k = low_rank + s * eye, model.kernel.evaluate(x) + s * eye
    target = y - model.mean(x)
    r = target - k @ v
    fit = r @ torch.linalg.solve(q, r) + v @ (target + r)
    if form == "trace_error":
        gap = (model.kernel.diagonal(x) - low_rank.diagonal()).clamp(min=0.0).sum()
        more = n * torch.log1p(gap / (n * s))
    else:
        more = n * (torch.linalg.solve(q, k).trace() / n).log()
    return -0.5 * (fit + torch.logdet(q) + more + n * math.log(2 * math.pi))


def exact_solution(model, x, y):
    n = len(x)
    k = model.kernel.evaluate(x) + model.likelihood.noise_variance * torch.eye(n, dtype=x.dtype)
    return torch.linalg.solve(k, y - model.mean(x)).detach()


@pytest.mark.parametrize("budget", [1 << 14, 2**30])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KERNELS)
def test_value_and_gradient_equal_autograd_at_any_v(name, form, budget, monkeypatch):
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", 13 * 10 * 8)  # 13 points a block
    model, x, y = problem(KERNELS[name]())
    for v in (torch.randn(60, dtype=torch.float64), exact_solution(model, x, y)):
        value, inputs, known = at(model, x, y, v, form, budget)
        want = dense(model, x, y, v, form)
        torch.testing.assert_close(value, want.detach(), rtol=1e-11, atol=0)
        parameters = list(model.parameters())
        grads = torch.autograd.grad(want, parameters)
        found = torch.autograd.grad(inputs, parameters, known)
        for a, b in zip(found, grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


@pytest.mark.parametrize("form", FORMS)
def test_gradient_follows_jitter_and_inputs(form):
    model, x, y = problem(jitter=1e-2)
    layer = torch.nn.Linear(3, 3).double()
    v = torch.randn(60, dtype=torch.float64)
    _, inputs, known = at(model, layer(x), y, v, form)
    leaves = [*model.parameters(), *layer.parameters()]
    found = torch.autograd.grad(inputs, leaves, known)
    want = torch.autograd.grad(dense(model, layer(x), y, v, form), leaves)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


def test_golden_values():
    model, x, y = golden()
    solution = exact_solution(model, x, y)
    for form, at_zero, at_solution in (
        ("trace_error", -15.38647192, -12.90910478),
        ("preconditioned_trace", -14.87147446, -12.39410732),
    ):
        zero = at(model, x, y, torch.zeros_like(y), form)[0]
        assert float(zero.detach()) == pytest.approx(at_zero, rel=1e-8)
        best = at(model, x, y, solution, form)[0]
        assert float(best.detach()) == pytest.approx(at_solution, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "steps"), [(1.0, 1), (1e-3, 3), (1e-6, 4)])
def test_golden_steps_and_their_guarantee(epsilon, steps):
    model, x, y = golden()
    with torch.no_grad():
        evidence = CGLowerBound(AuxiliarySolver(epsilon=epsilon)).evidence(model, x, y)
    assert evidence.kind == "lower_bound"
    assert evidence.report.converged
    assert evidence.report.iterations == steps
    assert -12.90910478 - epsilon <= float(evidence.value) <= -12.90910477
    if epsilon == 1.0:
        assert float(evidence.value) == pytest.approx(-13.15869761, rel=1e-8)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    log_noise=st.floats(-3, 1),
    log_scale=st.floats(-0.7, 0.7),
    m=st.integers(1, 30),
)
def test_orderings(seed, log_noise, log_scale, m):
    kernel = (RBF, Matern32, Matern52)[seed % 3](lengthscale=10**log_scale)
    model, x, y = problem(kernel, n=40, m=m, noise=10**log_noise, seed=seed)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        lml = float(ExactMLL().evidence(exact, x, y).value)
        elbo = float(CollapsedELBO().evidence(model, x, y).value)
    solution = exact_solution(model, x, y)
    slack = 1e-8 * max(1.0, abs(lml), abs(elbo))
    for v in (
        torch.zeros_like(y),
        solution,
        torch.randn(40, generator=generator, dtype=torch.float64),
        solution * 0.7,
    ):
        loose, tight = (float(at(model, x, y, v, form)[0].detach()) for form in FORMS)
        slack = max(slack, 1e-8 * abs(loose))
        assert loose <= tight + slack
        assert tight <= lml + slack
        if not v.any() or v is solution:
            assert elbo <= loose + slack


def test_at_all_data_the_bound_is_exact_for_every_v():
    model, x, y = problem(n=30, m=30)
    with torch.no_grad():
        model.inducing_points.copy_(x)
        exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
        want = ExactMLL().evidence(exact, x, y).value
    for form in FORMS:
        value = at(model, x, y, torch.randn(30, dtype=torch.float64), form)[0]
        torch.testing.assert_close(value, want, rtol=1e-9, atol=0)


def test_zero_vector_has_the_collapsed_bounds_fit():
    model, x, y = problem()
    solver = AuxiliarySolver(epsilon=1e9)
    with torch.no_grad():
        elbo = CollapsedELBO().evidence(model, x, y)
        found = CGLowerBound(AuxiliarySolver(epsilon=1e9)).evidence(model, x, y)
    assert solver.epsilon == 1e9
    assert found.report.iterations == 0
    torch.testing.assert_close(found.parts["fit"], elbo.parts["fit"])
    assert found.value > elbo.value


def test_reduced_products_give_the_bound_of_the_true_residual():
    model, x, y = problem(noise=1e-2, n=80)
    evidence = CGLowerBound(AuxiliarySolver(epsilon=1e-4, product_dtype="float32")).evidence(
        model, x, y
    )
    assert evidence.report.converged
    want = dense(model, x, y, model.auxiliary, "trace_error")
    torch.testing.assert_close(evidence.value, want, rtol=1e-10, atol=0)
    best = dense(model, x, y, exact_solution(model, x, y), "trace_error")
    assert best - 1e-4 - 1e-7 <= evidence.value <= best + 1e-7


def test_chunked_equals_dense_matrix():
    model, x, y = problem(n=200, m=20)
    values = []
    for budget in (1 << 14, 2**30):
        objective = CGLowerBound(AuxiliarySolver(memory_budget=budget), refresh="iteration")
        matrix = objective.solver.matrix(model.kernel, x, model.likelihood.noise_variance)
        assert matrix._full.backend == ("chunked" if budget == 1 << 14 else "dense")
        objective.moved.fill_(bool(model.auxiliary.any()))  # the second keeps the first one's v
        value = objective.evidence(model, x, y).value
        values.append([value.detach(), *torch.autograd.grad(value, list(model.parameters()))])
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


def test_memory_is_linear_in_the_number_of_points(monkeypatch):
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", 20 * 12 * 8)
    solver, largest = AuxiliarySolver(memory_budget=1 << 15, max_iterations=2), {}
    for n in (150, 300):
        model, x, y = problem(n=n, m=12)
        with Largest() as seen:
            CGLowerBound(solver).evidence(model, x, y).value.backward()
        largest[n] = seen.entries
    # tiles of at most 45 x 45, and thin blocks of (n, M)
    assert largest[150] <= 2100
    assert largest[300] <= 2 * 2100 < 300 * 300 / 20


def test_the_vector_is_a_warm_start():
    model, x, y = problem(n=120, m=6, noise=1e-2)
    objective = CGLowerBound(AuxiliarySolver(epsilon=1e-2))
    with torch.no_grad():
        first = objective.evidence(model, x, y)
        again = objective.evidence(model, x, y)
        model.likelihood.noise_variance = model.likelihood.noise_variance * 1.05
        moved = objective.evidence(model, x, y)
    assert first.report.iterations > 5
    assert again.report.iterations == 0
    assert torch.equal(first.value, again.value)
    assert moved.report.iterations < first.report.iterations


def test_both_modes_solve_at_the_first_evaluation():
    values = []
    for refresh in ("evaluation", "iteration"):
        model, x, y = problem(n=120, m=6, noise=1e-2)
        with torch.no_grad():
            found = CGLowerBound(AuxiliarySolver(epsilon=1e-3), refresh=refresh).evidence(
                model, x, y
            )
        assert found.report.converged
        assert found.report.iterations > 0
        values.append(found.value)
    assert torch.equal(values[0], values[1])


def test_iteration_mode_holds_the_vector_within_a_line_search():
    model, x, y = problem(n=120, m=6, noise=1e-2)
    objective = CGLowerBound(AuxiliarySolver(epsilon=1e-3), refresh="iteration")
    with torch.no_grad():
        objective.evidence(model, x, y)
        held = model.auxiliary.clone()
        model.likelihood.noise_variance = model.likelihood.noise_variance * 3.0
        inside = objective.evidence(model, x, y)
        assert torch.equal(model.auxiliary, held)
        assert not inside.report.converged
        want = dense(model, x, y, held, "trace_error")
        torch.testing.assert_close(inside.value, want, rtol=1e-10, atol=0)
        objective.after_step(model)
        after = objective.evidence(model, x, y)
    assert after.report.converged
    assert after.value > inside.value
    assert not torch.equal(model.auxiliary, held)


def test_stalls_lower_epsilon_and_then_hold_the_vector():
    model, _, _ = problem()
    objective = CGLowerBound(AuxiliarySolver(epsilon=2.0))
    seen = []
    while objective.after_stall(model):
        seen.append((objective.current_solver.epsilon, bool(objective.hold)))
    assert seen == [
        (pytest.approx(0.2), False),
        (pytest.approx(0.02), False),
        (pytest.approx(0.02), True),
    ]
    assert not objective.after_stall(model)
    assert objective.solver.epsilon == 2.0
    fresh = CGLowerBound()
    fresh.load_state_dict(objective.state_dict())
    assert bool(fresh.hold)
    assert int(fresh.stalls) == 2


def test_a_state_of_earlier_versions_is_loaded():
    state = CGLowerBound(refresh="iteration").state_dict()
    del state["stalls"]
    objective = CGLowerBound()
    objective.stalls.fill_(1)
    objective.load_state_dict(state)
    assert bool(objective.hold)
    assert int(objective.stalls) == 0


def test_a_pickle_of_earlier_versions_is_read():
    model, x, y = problem()
    objective = CGLowerBound()
    objective.after_stall(model)
    assert int(pickle.loads(pickle.dumps(objective)).stalls) == 1
    state = objective.__getstate__()
    buffers = {name: b for name, b in state["_buffers"].items() if name != "stalls"}
    earlier = CGLowerBound.__new__(CGLowerBound)
    earlier.__setstate__(state | {"_buffers": buffers})
    assert int(earlier.stalls) == 0
    earlier.after_step(model)
    earlier.evidence(model, x, y)


def test_a_line_search_is_not_spoilt_by_a_far_first_point():
    """v is that of the start of the iteration, so small steps from there can gain."""
    model, x, y = problem(n=120, m=6, noise=1e-2)
    objective = CGLowerBound(AuxiliarySolver(epsilon=1e-3), refresh="iteration")
    noise = model.likelihood.noise_variance.detach().clone()
    with torch.no_grad():
        start = objective.evidence(model, x, y).value
        objective.after_step(model)
        model.likelihood.noise_variance = 1e3 * noise
        far = objective.evidence(model, x, y).value
        model.likelihood.noise_variance = 1.0001 * noise
        near = objective.evidence(model, x, y).value
    assert far < start - 10.0
    assert abs(near - start) < 0.1


def test_the_search_goes_on_where_an_inexact_vector_stalls_it():
    """With a coarse epsilon the loss jumps; L-BFGS still ends at the bound of a fine one.

    Where the first stall kept v within iterations, this search ended 3 nats below.
    """
    ends = []
    for epsilon in (1.0, 1e-4):
        model, x, y = problem(n=120, m=6, noise=1e-1, seed=2)
        objective = CGLowerBound(AuxiliarySolver(epsilon=epsilon))
        LBFGSB().minimise(
            list(model.parameters()),
            lambda m=model, o=objective, x=x, y=y: o.loss(o.evidence(m, x, y), m, x),
            160,
            lambda *_: None,
            after_iteration=lambda m=model, o=objective: o.after_step(m),
            after_stall=lambda m=model, o=objective: o.after_stall(m),
        )
        fine = CGLowerBound(AuxiliarySolver(epsilon=1e-6))
        with torch.no_grad():
            ends.append(float(fine.evidence(model, x, y).value))
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


@pytest.mark.parametrize("refresh", ["evaluation", "iteration"])
def test_a_run_stopped_after_any_evaluation_goes_on_bit_for_bit(refresh, monkeypatch):
    monkeypatch.setattr(module, "FINE_EPSILON", 10.0)  # the first stall keeps v within iterations

    def search(state=None, saved=None):
        """Evaluations of a run, from ``state`` on; states after each are added to ``saved``."""
        model, x, y = problem(n=40, m=4, noise=1e-1, seed=2)
        objective, solver = (
            CGLowerBound(AuxiliarySolver(epsilon=3.0), refresh=refresh),
            LBFGSB(ftol=1e-3),
        )
        parts = (model, objective, solver)
        for part, its in zip(parts, state or (), strict=state is not None):
            part.load_state_dict(its)

        def after_evaluation(*_):
            if saved is not None:
                saved.append(copy.deepcopy([part.state_dict() for part in parts]))

        solver.minimise(
            list(model.parameters()),
            lambda: objective.loss(objective.evidence(model, x, y), model, x),
            18,
            after_evaluation,
            after_iteration=lambda: objective.after_step(model),
            after_stall=lambda: objective.after_stall(model),
        )
        return [(value, gradient.tolist()) for _, value, gradient in solver.record.evaluations]

    states = []
    whole = search(saved=states)
    updates = {tuple(its["auxiliary"].tolist()) for its, held, _ in states if held["hold"]}
    assert len(updates) >= 2
    for state in states:
        assert search(state) == whole


def test_a_step_of_first_order_solves_once_for_the_vector(monkeypatch):
    model, x, y = problem()
    objective, made = CGLowerBound(refresh="iteration"), []
    of = NystromMatrix.of
    monkeypatch.setattr(NystromMatrix, "of", lambda *a, **k: made.append(a) or of(*a, **k))
    for _ in range(3):
        objective.evidence(model, x, y)
        with torch.no_grad():
            model.likelihood.noise_variance = model.likelihood.noise_variance * 1.5
        objective.after_step(model)
    assert len(made) == 3


def test_the_evidence_of_a_run_that_ends_within_a_line_search_is_within_epsilon():
    model, x, y = problem(n=120, m=6, noise=1e-2)
    objective = CGLowerBound(AuxiliarySolver(epsilon=1e-3), refresh="iteration")
    with torch.no_grad():
        objective.evidence(model, x, y)
        model.likelihood.noise_variance = model.likelihood.noise_variance * 3.0
        found = objective.full_evidence(model, x, y, batch_size=10)
    best = dense(model, x, y, exact_solution(model, x, y), "trace_error")
    assert float(found.value) == pytest.approx(float(best.detach()), abs=1e-3)


def test_a_second_run_begins_as_the_first():
    model, x, y = problem()
    for refresh in ("evaluation", "iteration"):
        objective = CGLowerBound(refresh=refresh)
        before = {name: value.clone() for name, value in objective.state_dict().items()}
        with torch.no_grad():
            objective.evidence(model, x, y)
        objective.after_stall(model)
        objective.prepare(model, x, y)
        assert objective.state_dict() == before


def test_other_rows_than_those_of_the_vector_are_refused():
    model, x, y = problem()
    with pytest.raises(ConfigError, match="num_data=60 but there are 50 training rows"):
        CGLowerBound().evidence(model, x[:50], y[:50])
    with pytest.raises(ConfigError, match="num_data=60 but there are 50 training rows"):
        model.initialise(x[:50], y[:50], generator=torch.Generator())


def test_a_kept_vector_of_targets_that_are_their_mean_has_no_residual():
    model, x, _ = problem()
    y = model.mean(x).detach()
    objective = CGLowerBound(refresh="iteration")
    with torch.no_grad():
        objective.evidence(model, x, y)
        assert objective.evidence(model, x, y).report.residual == 0.0


@pytest.mark.parametrize("objective", [CollapsedELBO, CGLowerBound])
def test_the_jitter_of_a_run_is_in_the_unit_of_the_option(objective):
    model, x, y = problem(RBF(3, outputscale=50.0), jitter=1e-3)
    assert objective().evidence(model, x, y).facts["jitter"] == 1e-3


def test_too_few_steps_still_give_a_bound_above_the_collapsed_one():
    model, x, y = problem(n=150, m=5, noise=1e-5)
    with torch.no_grad():
        elbo = CollapsedELBO().evidence(model, x, y).value
        exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
        lml = ExactMLL().evidence(exact, x, y).value
        for steps in (1, 2, 5):
            model.auxiliary.zero_()
            evidence = CGLowerBound(AuxiliarySolver(epsilon=1e-9, max_iterations=steps)).evidence(
                model, x, y
            )
            assert not evidence.report.converged
            assert "steps were not enough" in evidence.report.reason
            assert elbo <= evidence.value <= lml


def test_unreachable_tolerance_is_reported():
    model, x, y = problem(noise=1e-6, n=80)
    with torch.no_grad():
        evidence = CGLowerBound(AuxiliarySolver(epsilon=1e-300, max_iterations=300)).evidence(
            model, x, y
        )
    assert not evidence.report.converged
    assert evidence.report.reason
    assert torch.isfinite(evidence.value)


def test_repeated_inputs_and_noise_near_zero():
    model, x, y = problem(n=40, m=12, noise=1.1e-6)
    x = torch.cat([x, x])
    y = torch.cat([y, y + 1e-4])
    model.auxiliary = torch.zeros(80, dtype=torch.float64)
    with torch.no_grad():
        model.inducing_points.copy_(x[[0, 40, 1, 41, *range(2, 10)]])  # repeated as well
    evidence = CGLowerBound(AuxiliarySolver(max_iterations=1000)).evidence(model, x, y)
    evidence.value.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    with torch.no_grad():
        lml = float(ExactMLL().evidence(exact, x, y).value)
    assert float(evidence.value.detach()) <= lml + 1e-6 * abs(lml)


def test_invalid_setups_are_refused():
    model, x, y = problem()
    bad = y.clone()
    bad[[3, 9]] = float("nan")
    with pytest.raises(DataError, match=r"2 of 60 targets are not finite .* in row 3"):
        CGLowerBound().evidence(model, x, bad)
    with pytest.raises(DataError, match="not finite"):
        CGLowerBound().prepare(model, x, bad)
    sgpr = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    with pytest.raises(ConfigError, match="needs CGLB, or a model with auxiliary, got SGPR"):
        CGLowerBound().check(sgpr)
    other = CGLB(
        kernel=RBF(), mean=Zero(), likelihood=StudentT(), num_inputs=1, num_data=5, num_inducing=2
    )
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood"):
        CGLowerBound().check(other)
    with pytest.raises(ConfigError, match=r"dtype=float64"):
        CGLowerBound().check(model.float())
    for options, message in (
        ({"epsilon": 0.0}, "epsilon=0.0 must be positive"),
        ({"max_iterations": 0}, "max_iterations=0 must be at least 1"),
        ({"product_dtype": "float16"}, "product_dtype=float16: expected one of float32, float64"),
        ({"refresh": "never"}, "refresh=never: expected one of evaluation, iteration"),
        ({"log_determinant": "exact"}, "log_determinant=exact: expected one of"),
        ({"memory_budget": 0}, "memory_budget=0 must be positive"),
    ):
        made = CGLowerBound if {"refresh", "log_determinant"} & set(options) else AuxiliarySolver
        with pytest.raises(ConfigError, match=message):
            made(**options)
    zero = torch.zeros((), dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="noise variance is 0"):
        NystromMatrix.of(RBF().double(), x, x[:1], y, zero)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    model, x, y = problem()
    # converged: a GPU looks at the residual less often and takes more steps
    objective = CGLowerBound(AuxiliarySolver(epsilon=1e-13))
    value = objective.evidence(model, x, y).value
    want = torch.autograd.grad(value, list(model.parameters()))
    model.cuda()
    model.auxiliary.zero_()
    found = objective.cuda().evidence(model, x.cuda(), y.cuda()).value
    torch.testing.assert_close(found.cpu(), value, rtol=1e-8, atol=0)
    for a, b in zip(torch.autograd.grad(found, list(model.parameters())), want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))
