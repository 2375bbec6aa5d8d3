"""Iterative log marginal likelihood against the dense one; probes enumerated, not averaged."""

import math

import golden_g1 as g1
import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.errors import ConfigError, DataError
from gpx.inference.noisy_kernel import NoisyKernel, PreconditionedKernel
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian, Laplace
from gpx.linalg import AbsoluteResidual, EvidenceBound, UnconvergedWarning, probe_vectors
from gpx.means import Linear, Zero
from gpx.methods.exact import preconditioned_gradient
from gpx.methods.exact.iterative_mll import iterative_gradient, iterative_log_marginal_likelihood
from gpx.models import SGPR, ExactGP, IterativeOptions
from gpx.objectives import ExactMLL, IterativeMLL, MarginalLikelihood


def problem(rank=8, n=60, noise=0.07, **options):
    torch.manual_seed(0)
    x = torch.randn(n, 3, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = ExactGP(
        kernel=Matern32(ard_num_dims=3, lengthscale=[0.8, 1.5, 2.0], outputscale=1.4),
        mean=Linear(3, bias=0.3),
        likelihood=Gaussian(noise),
        solver="iterative",
        iterative=IterativeOptions(rank=rank, **options),
    ).double()
    return model, x, y


def every_probe(n):
    """Columns whose mean outer product is the identity: the expectation without averaging."""
    return n**0.5 * torch.eye(n, dtype=torch.float64)


def gradients(value, model):
    return torch.autograd.grad(value, list(model.parameters()), retain_graph=True)


@pytest.fixture
def enumerated(monkeypatch):
    """IterativeMLL and its like with every probe at once."""
    from gpx.methods.exact import iterative_mll

    monkeypatch.setattr(iterative_mll, "probe_vectors", lambda n, *_, **__: every_probe(n))


@pytest.mark.parametrize("rank", [1, 8, 60])
def test_expectation_over_the_probes_is_the_exact_value_and_gradient(enumerated, rank):
    model, x, y = problem(rank)
    x.requires_grad_()
    want = ExactMLL().evidence(model, x, y)
    got = IterativeMLL(tolerance=1e-14).evidence(model, x, y)
    torch.testing.assert_close(got.value, want.value, rtol=1e-10, atol=0)
    # reading Lanczos coefficients off CG loses digits once vectors are no longer conjugate
    for a, b in zip(gradients(got.value, model), gradients(want.value, model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    for name in ("fit", "complexity", "constant"):
        torch.testing.assert_close(got.parts[name], want.parts[name], rtol=1e-9, atol=0)
    by_input = [torch.autograd.grad(e.value, x)[0] for e in (got, want)]
    torch.testing.assert_close(*by_input, rtol=1e-6, atol=1e-6)
    assert got.kind == "estimate"
    assert got.facts["solver"] == "iterative"


def test_golden_g1_evidence(enumerated):
    model = g1.exact_model(ExactGP, iterative=IterativeOptions(rank=20))
    with torch.no_grad():
        got = IterativeMLL(tolerance=1e-12).evidence(model, g1.x[:, None], g1.y)
    assert got.value.item() == pytest.approx(-12.33457183, rel=1e-8)
    assert float(got.parts["fit"]) == pytest.approx(-0.5 * g1.INV_QUAD, rel=1e-9)
    assert float(got.parts["complexity"]) == pytest.approx(-0.5 * g1.LOGDET, rel=1e-9)


def test_no_scatter_when_the_preconditioner_is_exact():
    """At condition number 1 a single Rademacher probe gives the exact value and gradient."""
    model, x, y = problem(rank=60, noise=0.5)
    want = ExactMLL().evidence(model, x, y)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        got = IterativeMLL(probes=2, tolerance=1e-10).evidence(model, x, y, generator=generator)
        # the factor stops at a trace error of 1 % of the noise variance: not quite condition 1
        assert got.value.item() == pytest.approx(want.value.item(), abs=5e-3)
        for a, b in zip(gradients(got.value, model), gradients(want.value, model), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def test_error_bar_covers_the_error():
    """50 seeds; 4 standard errors of 10 probes miss one time in 300 (t with 9 degrees)."""
    model, x, y = problem()
    with torch.no_grad():
        want = ExactMLL().evidence(model, x, y).value
        system = PreconditionedKernel(
            model.kernel, x, model.likelihood.noise_variance, model.iterative
        )
        residual, missed = y - model.mean(x), 0
        for seed in range(50):
            xi = probe_vectors(60, 10, generator=torch.Generator().manual_seed(seed))
            terms, _, _ = iterative_log_marginal_likelihood(
                system, residual, xi, stop=EvidenceBound(1e-2)
            )
            room = 4 * terms.standard_error + terms.fit_gap + terms.quadrature_gap
            missed += int((terms.total() - want).abs() > room)
    assert missed <= 3


def test_the_quadrature_gap_covers_what_the_probes_leave_open():
    """Against xi^T log(Q^{-1/2} K Q^{-1/2}) xi itself, with probes that end at different steps."""
    model, x, y = problem(rank=4, n=150, noise=0.003)
    with torch.no_grad():
        noise = model.likelihood.noise_variance
        system = PreconditionedKernel(model.kernel, x, noise, model.iterative)
        q = system.preconditioner
        dense = system.whitened(torch.eye(150, dtype=torch.float64))
        values, vectors = torch.linalg.eigh(0.5 * (dense + dense.mT))
        xi = probe_vectors(150, 6, generator=torch.Generator().manual_seed(0))
        xi *= torch.logspace(0, -0.5, 6, dtype=torch.float64)  # the smaller, the earlier it ends
        truth = 0.5 * ((vectors.mT @ xi).square() * values.log().unsqueeze(1)).sum(0).mean()
        for tolerance in (4.0, 1.0, 0.3):
            terms, solved, _ = iterative_log_marginal_likelihood(
                system, y - model.mean(x), xi, stop=EvidenceBound(tolerance)
            )
            assert solved.iterations[1:].unique().numel() > 2
            off = float(-terms.complexity - 0.5 * q.logdet() - truth)
            assert abs(off) <= float(terms.quadrature_gap)
            assert abs(off) > 1e-3 * float(terms.quadrature_gap)  # of the order of the error


def test_probes_are_fixed_for_line_searches_and_drawn_anew_with_a_generator():
    model, x, y = problem()
    objective = IterativeMLL(probes=2)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        first = objective.evidence(model, x, y).value
        assert torch.equal(first, objective.evidence(model, x, y).value)
        generator = torch.Generator().manual_seed(1)
        drawn = [objective.evidence(model, x, y, generator=generator).value for _ in range(2)]
        assert drawn[0] != drawn[1]
        restored = IterativeMLL(probes=2)
        restored.load_state_dict(objective.state_dict())
        assert torch.equal(first, restored.evidence(model, x, y).value)
        fixed = IterativeMLL(probes=2, resample=False)
        values = [fixed.evidence(model, x, y, generator=generator).value for _ in range(2)]
    assert torch.equal(*values)


def test_an_unfinished_solve_is_a_warning_with_a_bound_that_holds():
    model, x, y = problem(rank=1, noise=0.001)
    with torch.no_grad():
        exact = ExactMLL().evidence(model, x, y).parts["fit"]
        with pytest.warns(UnconvergedWarning, match="3 steps were not enough: bound on the evid"):
            got = IterativeMLL(max_iterations=3).evidence(model, x, y)
    assert not got.report.converged
    assert got.facts["solver_converged"] is False
    assert got.parts["fit"] <= exact
    assert exact - got.parts["fit"] <= got.parts["fit_gap"]
    assert got.parts["fit_gap"] > 1.0


def test_the_published_criterion_overestimates_and_the_gap_says_so():
    model, x, y = problem(rank=1, noise=1e-4)
    with torch.no_grad():
        exact = ExactMLL().evidence(model, x, y).parts["fit"]
        loose = IterativeMLL(criterion="residual_per_row", tolerance=0.1).evidence(model, x, y)
    assert loose.parts["fit"] > exact + 5.0
    assert loose.parts["fit"] - exact <= loose.parts["fit_gap"]


@pytest.mark.parametrize("corrected", [True, False])
def test_gradient_of_the_fit_is_that_of_the_quadratic_with_the_solve_frozen(corrected):
    """Loose solve: the terms in the residual count, and must match autograd through the formula."""
    model, x, y = problem(rank=6)
    residual = (y - model.mean(x)).detach()
    noise = model.likelihood.noise_variance
    system = PreconditionedKernel(model.kernel, x, noise, model.iterative)
    stop = EvidenceBound(5.0)
    n = len(x)
    _, solved, _ = iterative_log_marginal_likelihood(system, residual, every_probe(n), stop=stop)
    exact_probes = solved.solution[:, 1:]  # replaced by the exact solve: the trace is exact then
    dense = model.kernel.evaluate(x, x) + noise * torch.eye(n, dtype=torch.float64)
    z = system.preconditioner.inverse_root_matmul(every_probe(n))
    exact_probes.copy_(torch.linalg.solve(dense.detach(), system.preconditioner.matmul(z)))
    found = iterative_gradient(system, model.kernel, x, solved, z, corrected=corrected)
    v = solved.solution[:, 0]
    pivots = x[system.pivots]
    cross = model.kernel.evaluate(x, pivots)
    q = cross @ torch.linalg.solve(model.kernel.evaluate(pivots, pivots), cross.mT)
    q = q + noise * torch.eye(n, dtype=torch.float64)
    target = residual.clone().requires_grad_()
    r = target - dense @ v
    value = -0.5 * (v @ (target + r)) - 0.5 * torch.logdet(dense)
    if corrected:
        value = value - 0.5 * r @ torch.linalg.solve(q, r)
    want = torch.autograd.grad(value, [target, *found.kernel.inputs()])
    torch.testing.assert_close(found.residual, want[0], rtol=1e-8, atol=1e-8)
    for a, b in zip(found.kernel.gradients(), want[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_float32_products_under_float64_recurrences():
    model, x, y = problem()
    reduced, _, _ = problem(product_dtype="float32")
    with torch.no_grad():
        want = IterativeMLL(tolerance=1e-3).evidence(model, x, y)
    got = IterativeMLL(tolerance=1e-3).evidence(reduced, x, y)
    assert got.value.item() == pytest.approx(want.value.item(), abs=1e-2)
    assert got.facts["products"] == "dense float32"
    assert math.isnan(got.parts["quadrature_gap"])
    assert all(g.isfinite().all() for g in gradients(got.value, reduced))


def test_float32_data_are_solved_in_float64():
    model, x, y = problem()
    with torch.no_grad():
        want = IterativeMLL(tolerance=1e-3).evidence(model, x, y).value
    narrow = model.float()
    got = IterativeMLL(tolerance=1e-3).evidence(narrow, x.float(), y.float())
    assert got.value.dtype == torch.float64
    assert got.value.item() == pytest.approx(float(want), abs=1e-2)
    assert all(g.dtype == torch.float32 for g in gradients(got.value, narrow))


@pytest.mark.parametrize("noise", [0.07, 2e-6])
def test_repeated_inputs_and_vanishing_noise(noise):
    model, x, y = problem(rank=60, noise=0.07)
    model.likelihood.noise_variance = torch.tensor(noise, dtype=torch.float64)
    x = torch.cat([x, x[:20]])
    y = torch.cat([y, y[:20]])
    with torch.no_grad():
        want = ExactMLL().evidence(model, x, y)
        got = IterativeMLL(tolerance=1e-2).evidence(model, x, y)
    assert got.report.converged
    room = 4 * got.parts["standard_error"] + got.parts["fit_gap"] + got.parts["quadrature_gap"]
    assert abs(float(got.value - want.value)) <= float(room) + 1e-3 * abs(want.value.item())


def test_targets_that_are_not_finite_are_counted():
    model, x, y = problem()
    y[7] = math.nan
    y[9] = math.inf
    for objective in (IterativeMLL(), ExactMLL()):
        with pytest.raises(DataError, match=r"2 of 60 targets .* the first in row 7"):
            objective.evidence(model, x, y)


def test_options_are_checked():
    with pytest.raises(ConfigError, match="probes=0"):
        IterativeMLL(probes=0)
    with pytest.raises(ConfigError, match="kind_of_probes=sparse"):
        IterativeMLL(kind_of_probes="sparse")
    with pytest.raises(ConfigError, match="criterion=energy"):
        IterativeMLL(criterion="energy")
    with pytest.raises(ConfigError, match="must be positive"):
        IterativeMLL(tolerance=0.0)
    model, x, y = problem()
    model.likelihood = Laplace()
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got Laplace"):
        IterativeMLL().evidence(model, x, y)
    sparse = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=3).double()
    with pytest.raises(
        ConfigError, match="IterativeMLL needs ExactGP, or a model with iterative and solver_for"
    ):
        IterativeMLL().evidence(sparse, x, y)


@pytest.mark.parametrize("solver", ["cholesky", "iterative", "barely_biased", "auto"])
def test_the_objective_follows_the_model(solver):
    model, x, y = problem()
    model.solver = solver
    objective = MarginalLikelihood()
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = objective.evidence(model, x, y)
    assert found.facts["solver"] == ("cholesky" if solver == "auto" else solver)
    assert found.kind == ("exact" if solver in ("auto", "cholesky") else "estimate")
    with pytest.raises(ConfigError, match="BarelyBiasedMLL"):
        MarginalLikelihood(barely_biased=IterativeMLL())


@pytest.mark.parametrize("solver", ["iterative", "barely_biased"])
def test_products_of_the_gradient_keep_to_the_memory_budget(solver, monkeypatch):
    budgets = []

    class Recorded(NoisyKernel):
        def derivative(self, *vectors):
            budgets.append(self.memory_budget)
            return super().derivative(*vectors)

    monkeypatch.setattr(preconditioned_gradient, "NoisyKernel", Recorded)
    model, x, y = problem(memory_budget=12_345)
    model.solver = solver
    objective = MarginalLikelihood()
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
    objective.evidence(model, x, y)
    assert set(budgets) == {12_345}


def test_a_rule_met_without_a_step_leaves_no_bracket_and_a_bound_on_the_fit():
    model, x, y = problem()
    objective = IterativeMLL(criterion="residual_per_row", tolerance=10.0)
    found = objective.evidence(model, x, y)
    assert found.report.iterations == 0
    assert float(found.parts["fit"]) == 0.0
    assert found.parts["quadrature_gap"].isnan()
    with torch.no_grad():
        exact = ExactMLL().evidence(model, x, y)
    assert float(found.parts["fit"] - exact.parts["fit"]) <= float(found.parts["fit_gap"])
    assert all(g.isfinite().all() for g in gradients(found.value, model))


def test_residual_rule_is_the_published_one():
    assert isinstance(IterativeMLL(criterion="residual_per_row").stop, AbsoluteResidual)


def test_a_solve_that_begins_where_the_last_one_ended_is_as_exact_and_shorter():
    model, x, y = problem(rank=4, n=200)
    cold, warm = IterativeMLL(tolerance=1e-6), IterativeMLL(tolerance=1e-6, warm_start=True)
    for objective in (cold, warm):
        objective.evidence(model, x, y, generator=torch.Generator().manual_seed(0))
    assert warm.previous.shape == (200,)
    with torch.no_grad():  # a step of an optimiser
        model.likelihood.noise_variance = model.likelihood.noise_variance * 1.01
        system = PreconditionedKernel(
            model.kernel, x, model.likelihood.noise_variance, model.iterative
        )
        residual = y - model.mean(x)
        probes = torch.ones(200, 1, dtype=torch.float64)
        steps = [
            iterative_log_marginal_likelihood(
                system, residual, probes, stop=EvidenceBound(1e-6), start=start
            )[1].iterations[0]
            for start in (None, warm.previous)
        ]
    assert steps[1] < steps[0]
    values = [
        objective.evidence(model, x, y, generator=torch.Generator().manual_seed(1))
        for objective in (cold, warm)
    ]
    assert float(values[0].parts["fit"]) == pytest.approx(float(values[1].parts["fit"]), abs=2e-6)
    # the probes begin at zero in both: the same steps, the same quadrature
    torch.testing.assert_close(values[0].parts["complexity"], values[1].parts["complexity"])
    again = IterativeMLL(warm_start=True)
    again.load_state_dict(warm.state_dict())
    assert torch.equal(again.previous, warm.previous)


def test_without_a_generator_of_the_step_every_evaluation_begins_at_zero():
    """L-BFGS-B compares values at different points: they are a function of the point alone."""
    model, x, y = problem()
    objective = IterativeMLL(warm_start=True)
    first = objective.evidence(model, x, y).value
    assert objective.previous.numel() == 0
    assert torch.equal(objective.evidence(model, x, y).value, first)
    assert "previous" not in IterativeMLL().state_dict()  # of older checkpoints


def test_on_a_gpu_points_are_drawn_in_blocks_and_bound_the_evidence_as_well():
    model, x, y = problem(rank=100, n=300)
    dense = ExactMLL().evidence(model, x, y).value
    with claimed_cuda() as waits:
        there = model.cuda()
        system = PreconditionedKernel(
            there.kernel, x.cuda(), there.likelihood.noise_variance.detach(), there.iterative
        )
        found = waits.total()
        again = PreconditionedKernel(
            there.kernel, x.cuda(), there.likelihood.noise_variance.detach(), there.iterative
        )
        assert torch.equal(system.pivots, again.pivots)  # always the same draws
        objective = IterativeMLL(tolerance=1e-8, probes=200)
        generator = torch.Generator("cuda").manual_seed(0)
        evidence = objective.evidence(there, x.cuda(), y.cuda(), generator=generator)
        error = float(evidence.parts["standard_error"])
        value, rank = float(evidence.value.detach()), system.factor.shape[0]
    assert rank == 100
    assert found < 60  # one at a time: two waits for each of the 100 points
    assert error > 0.0
    assert abs(value - float(dense.detach())) < 5.0 * error  # false alarm: 6e-7
