"""Collapsed bound: golden values, orderings, gradients, streaming."""

import itertools
import math
import os
from pathlib import Path

import golden_g1 as g1
import numpy as np
import pytest
import torch
from model_gradients import KERNELS, gradients, same_gradients
from sparse_problems import sparse_problem

from gpx.errors import ConfigError
from gpx.inducing import GreedyConditionalVariance
from gpx.inference import nystrom
from gpx.inference.nystrom import BlockStore, factorise, nystrom_sums
from gpx.kernels import RBF, Matern32, Matern52
from gpx.kernels import Linear as LinearKernel
from gpx.likelihoods import Gaussian, StudentT
from gpx.linalg import with_gradient
from gpx.linalg.cholesky import checks_deferred
from gpx.means import Zero
from gpx.methods.sparse.collapsed_elbo import collapsed_elbo
from gpx.models import SGPR, ExactGP
from gpx.objectives import CollapsedELBO, ExactMLL


def autograd_value(model, x, y, relative_jitter=0.0):
    """The same quantity by dense n x n algebra, differentiated by autograd."""
    z, noise = model.inducing_points, model.likelihood.noise_variance
    gram = model.kernel.evaluate(z, z)
    shift = relative_jitter * gram.diagonal().mean()
    gram = gram + shift * torch.eye(len(z), dtype=x.dtype)
    cross = model.kernel.evaluate(z, x)
    nystrom_matrix = cross.mT @ torch.linalg.solve(gram, cross)
    matrix = nystrom_matrix + noise * torch.eye(len(x), dtype=x.dtype)
    residual = y - model.mean(x)
    fit = residual @ torch.linalg.solve(matrix, residual)
    value = -0.5 * (fit + torch.logdet(matrix) + len(x) * math.log(2 * math.pi))
    gap = (model.kernel.diagonal(x) - nystrom_matrix.diagonal()).clamp(min=0.0)
    return value - 0.5 * gap.sum() / noise


def problem(kernel=None, n=70, m=12, dtype=torch.float64, seed=0, **options):
    kernel = kernel or KERNELS["matern32"]()
    return sparse_problem(SGPR, n, m, kernel=kernel, seed=seed, dtype=dtype, **options)


@pytest.mark.parametrize("block", [13, 1000], ids=["blocks", "one_block"])
@pytest.mark.parametrize("budget", [1, 15 * 12 * 8, 2**30])
@pytest.mark.parametrize("name", KERNELS)
def test_value_and_gradient_equal_autograd(name, budget, block, monkeypatch):
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", block * 12 * 8)  # so many points a block
    model, x, y = problem(KERNELS[name]())
    evidence = CollapsedELBO(memory_budget=budget).evidence(model, x, y)
    want = autograd_value(model, x, y)
    torch.testing.assert_close(evidence.value, want, rtol=1e-11, atol=0)
    same_gradients(gradients(evidence.value, model), gradients(want, model), 1e-9)
    assert evidence.kind == "lower_bound"
    assert evidence.report.jitter == 0.0
    torch.testing.assert_close(sum(evidence.parts.values()), evidence.value.detach())


def test_gradcheck_of_the_plain_function():
    model, x, y = problem(n=12, m=4)
    kernel = model.kernel
    raw = [p.detach().clone() for p in kernel.parameters()]

    def bound(z, noise, residual):
        terms, gradient, _ = collapsed_elbo(kernel, x, z, residual, noise, gradient=True)
        inputs = [residual, noise, *gradient.kernel.inputs()]
        known = [gradient.residual, gradient.noise, *gradient.kernel.gradients()]
        return with_gradient(sum(terms), inputs, known)

    z = model.inducing_points.detach().clone().requires_grad_()
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    residual = y.clone().requires_grad_()
    assert torch.autograd.gradcheck(bound, (z, noise, residual))
    for before, after in zip(raw, kernel.parameters(), strict=True):
        torch.testing.assert_close(before, after.detach(), rtol=0, atol=0)


def test_inducing_points_on_the_data_keep_the_gradient_consistent():
    # t_n is zero up to rounding there, of either sign: clamped points must drop out of both
    model, x, y = problem()
    with torch.no_grad():
        model.inducing_points.copy_(x[:12])
    value = CollapsedELBO().evidence(model, x, y).value
    want = autograd_value(model, x, y)
    torch.testing.assert_close(value, want, rtol=1e-11, atol=0)
    same_gradients(gradients(value, model), gradients(want, model), 1e-8)


def test_points_clamped_by_far_are_constant():
    class Understated(RBF):
        """Says that its variance is smaller than k(x, x), so that half of the t_n are negative."""

        def variance(self, x):
            return super().variance(x) * (0.5 + 0.4 * (x[:, 0] > 0))

    model, x, y = problem(Understated(lengthscale=1.0), m=20)
    value = CollapsedELBO().evidence(model, x, y).value
    want = autograd_value(model, x, y)
    torch.testing.assert_close(value, want, rtol=1e-11, atol=0)
    same_gradients(gradients(value, model), gradients(want, model), 1e-8)


def test_gradient_follows_the_jitter():
    model, x, y = problem(jitter=1e-2)
    evidence = CollapsedELBO().evidence(model, x, y)
    assert evidence.report.relative == 1e-2
    want = autograd_value(model, x, y, relative_jitter=1e-2)
    torch.testing.assert_close(evidence.value, want, rtol=1e-11, atol=0)
    same_gradients(gradients(evidence.value, model), gradients(want, model), 1e-9)


def test_jitter_never_raises_the_bound():
    values = []
    for jitter in (0.0, *(10.0**k for k in range(-9, 0))):
        model, x, y = problem(jitter=jitter)
        with torch.no_grad():
            values.append(float(CollapsedELBO().evidence(model, x, y).value))
    assert all(b <= a + 1e-8 * abs(a) for a, b in itertools.pairwise(values))
    assert values[-1] < values[0] - 1.0


def test_float32_is_close_to_float64():
    model, x, y = problem(dtype=torch.float32)
    evidence = CollapsedELBO().evidence(model, x, y)
    got = gradients(evidence.value, model)
    assert evidence.value.dtype == torch.float64  # sums over the data are kept in double
    wide = model.double()
    want = autograd_value(wide, x.double(), y.double(), evidence.report.relative)
    torch.testing.assert_close(evidence.value, want, rtol=1e-4, atol=0)
    same_gradients(got, gradients(want, wide), 1e-3)


def test_gradient_reaches_inputs_made_by_a_network():
    model, x, y = problem()
    layer = torch.nn.Linear(3, 3).double()
    params = list(layer.parameters())
    got = torch.autograd.grad(CollapsedELBO().evidence(model, layer(x), y).value, params)
    want = torch.autograd.grad(autograd_value(model, layer(x), y), params)
    same_gradients(got, want, 1e-9)


def test_golden_value():
    with torch.no_grad():
        evidence = CollapsedELBO().evidence(g1.sparse_model(SGPR), g1.x[:, None], g1.y)
    assert float(evidence.value) == pytest.approx(-15.39090192, rel=1e-8)
    assert float(evidence.parts["trace"]) == pytest.approx(-0.09442316118 / 0.1, rel=1e-7)
    assert float(evidence.parts["fit"]) == pytest.approx(-0.5 * 178.0641848, rel=1e-8)
    logdet = float(evidence.parts["complexity"]) - 100 * math.log(0.05)
    assert logdet == pytest.approx(0.5 * 516.7462575, rel=1e-8)


ELEVATORS = [
    # lengthscale, noise, M, T, ELBO, LML (golden problem G3)
    (1.0, 1.0, 50, 948.767, -1868.965, -1444.28684),
    (1.0, 1.0, 200, 787.157, -1729.777, -1444.28684),
    (4.0, 0.1, 50, 429.922, -4089.656, -793.00731),
    (4.0, 0.1, 400, 69.125, -1205.222, -793.00731),
]


@pytest.mark.parametrize(("lengthscale", "noise", "m", "trace", "elbo", "lml"), ELEVATORS)
def test_elevators(lengthscale, noise, m, trace, elbo, lml):
    root = os.environ.get("GPX_DATA")
    path = Path(root or "") / "uci" / "elevators" / "data.csv.gz"
    if root is None or not path.is_file():
        pytest.skip("the elevators data are not in $GPX_DATA")
    rows = np.loadtxt(path, delimiter=",", max_rows=1000)
    rows = torch.from_numpy((rows - rows.mean(0)) / rows.std(0))
    x, y = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    kernel = Matern32(lengthscale=lengthscale)
    likelihood = Gaussian(0.5)
    model = SGPR(
        kernel=kernel, mean=Zero(), likelihood=likelihood, num_inputs=18, num_inducing=m
    ).double()
    for parameter, value in (("lengthscale", lengthscale), ("outputscale", 1.0)):
        setattr(kernel, parameter, torch.tensor(value, dtype=torch.float64))
    likelihood.noise_variance = torch.tensor(noise, dtype=torch.float64)
    chosen = GreedyConditionalVariance().select(x, kernel, m)
    first = [0, 238, 304, 737, 853, 805] if lengthscale == 1.0 else [0, 811, 853, 238, 304, 805]
    assert chosen.indices[:6].tolist() == first
    assert chosen.trace_error == pytest.approx(trace, abs=6e-4)
    with torch.no_grad():
        model.inducing_points.copy_(chosen.points)
        evidence = CollapsedELBO().evidence(model, x, y)
        exact = ExactGP(kernel=kernel, mean=Zero(), likelihood=likelihood)
        assert float(ExactMLL().evidence(exact, x, y).value) == pytest.approx(lml, abs=6e-6)
    assert float(evidence.value) == pytest.approx(elbo, abs=6e-4)
    assert float(evidence.parts["trace"]) == pytest.approx(-0.5 * trace / noise, abs=6e-3)


def test_inducing_points_at_all_data_give_the_log_marginal_likelihood():
    model, x, y = problem(n=30, m=30)
    with torch.no_grad():
        model.inducing_points.copy_(x)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    shared = [*model.kernel.parameters(), *model.mean.parameters()]
    bound = CollapsedELBO().evidence(model, x, y).value
    evidence = ExactMLL().evidence(exact, x, y).value
    torch.testing.assert_close(bound, evidence, rtol=1e-10, atol=0)
    got, want = torch.autograd.grad(bound, shared), torch.autograd.grad(evidence, shared)
    same_gradients(got, want, 1e-6)


def test_bound_is_below_the_evidence_and_grows_with_nested_points():
    generator = torch.Generator().manual_seed(7)
    for trial in range(100):
        n = int(torch.randint(5, 40, (), generator=generator))
        scale = 10 ** float(torch.empty(()).uniform_(-0.7, 0.7, generator=generator))
        noise = 10 ** float(torch.empty(()).uniform_(-3, 0.5, generator=generator))
        kernel = (RBF, Matern32, Matern52)[trial % 3](lengthscale=scale)
        model, x, y = problem(kernel, n=n, m=n, seed=trial)
        model.likelihood.noise_variance = torch.tensor(noise, dtype=torch.float64)
        exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
        objective, values = CollapsedELBO(), []
        with torch.no_grad():
            for m in (1, n // 2, n):
                part = SGPR(
                    kernel=model.kernel,
                    mean=model.mean,
                    likelihood=model.likelihood,
                    num_inputs=3,
                    num_inducing=m,
                ).double()
                part.inducing_points.copy_(model.inducing_points[:m])
                values.append(float(objective.evidence(part, x, y).value))
            values.append(float(ExactMLL().evidence(exact, x, y).value))
        slack = 1e-8 * max(1.0, *map(abs, values))
        assert all(a <= b + slack for a, b in itertools.pairwise(values))


def test_identical_inputs_need_one_inducing_point():
    x = torch.full((20, 1), 0.3, dtype=torch.float64)
    y = torch.linspace(-1, 1, 20, dtype=torch.float64)
    model = SGPR(
        kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.2), num_inputs=1, num_inducing=1
    ).double()
    with torch.no_grad():
        model.inducing_points.copy_(x[:1])
        bound = CollapsedELBO().evidence(model, x, y).value
        exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
        torch.testing.assert_close(
            bound, ExactMLL().evidence(exact, x, y).value, rtol=1e-12, atol=0
        )


def test_a_linear_kernel_needs_as_many_points_as_inputs():
    x = torch.randn(25, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = 0.7 * x[:, 0] + 0.1 * torch.cos(9 * x[:, 0])
    model = SGPR(
        kernel=LinearKernel(), mean=Zero(), likelihood=Gaussian(0.2), num_inputs=1, num_inducing=1
    ).double()
    with torch.no_grad():
        model.inducing_points.fill_(-2.3)  # any point but the origin
        bound = CollapsedELBO().evidence(model, x, y).value
        exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
        torch.testing.assert_close(
            bound, ExactMLL().evidence(exact, x, y).value, rtol=1e-10, atol=0
        )


def test_it_refuses_other_models_likelihoods_and_budgets():
    with pytest.raises(ConfigError, match="with inducing_points and features and jitter and"):
        CollapsedELBO().check(ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian()))
    model = SGPR(kernel=RBF(), mean=Zero(), likelihood=StudentT(), num_inputs=1, num_inducing=2)
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got StudentT"):
        CollapsedELBO().check(model)
    with pytest.raises(ConfigError, match=r"memory_budget=.* is no number of bytes"):
        CollapsedELBO(memory_budget=-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    model, x, y = problem()
    value = CollapsedELBO().evidence(model, x, y).value
    want = gradients(value, model)
    model.cuda()
    got = CollapsedELBO().evidence(model, x.cuda(), y.cuda()).value
    torch.testing.assert_close(got.cpu(), value, rtol=1e-9, atol=0)
    same_gradients([g.cpu() for g in gradients(got, model)], want, 1e-7)


def test_a_recording_that_meets_clamped_rows_is_discarded():
    """At its inducing points a row's unexplained variance is zero, or negative by rounding."""
    model, x, y = problem(RBF(3, 0.7).double())
    with checks_deferred() as noted:
        CollapsedELBO().evidence(model, x, y)
    assert not any(bool(check) for check in noted)
    model.place(x[:12].clone())
    gap = nystrom_sums(BlockStore(factorise(model.kernel, x[:12])[0], x), y).clamped
    assert bool(gap.any())
    with checks_deferred() as noted:
        CollapsedELBO().evidence(model, x, y)
    assert any(bool(check) for check in noted)
