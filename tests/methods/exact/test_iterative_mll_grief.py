"""Eigenfunctions as preconditioner of the iterative evidence: any Q below K, exact on average."""

import pytest
import torch

from gpx.bases import GridEigenfunctions
from gpx.errors import ConfigError
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Linear
from gpx.models import ExactGP, IterativeOptions
from gpx.objectives import ExactMLL, IterativeMLL

DOUBLE = torch.float64


def problem(n=50, rank=12, kernel=None, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=DOUBLE)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, generator=generator, dtype=DOUBLE)
    model = ExactGP(
        kernel=kernel or RBF(ard_num_dims=2, lengthscale=[0.8, 1.5], outputscale=1.4),
        mean=Linear(2, bias=0.3),
        likelihood=Gaussian(0.07),
        solver="iterative",
        iterative=IterativeOptions(rank=rank, preconditioner="grief", **options),
    ).double()
    return model, x, y


@torch.no_grad()
def test_q_stands_for_the_leading_eigenfunctions_and_lies_between_the_noise_and_k():
    model, x, _ = problem()
    noise = model.likelihood.noise_variance
    system = PreconditionedKernel(model.kernel, x, noise, model.iterative)
    assert isinstance(system.eigenfunctions, GridEigenfunctions)
    eye = torch.eye(50, dtype=DOUBLE)
    features = system.eigenfunctions(x)
    q = system.preconditioner.matmul(eye)
    torch.testing.assert_close(q, features @ features.mT + noise * eye, rtol=1e-10, atol=1e-10)
    k = model.kernel.evaluate(x, x) + noise * eye
    assert torch.linalg.eigvalsh(k - q).min() > -1e-8
    missed = (k - q).trace()
    torch.testing.assert_close(system.trace_error, missed, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("inputs", [False, True])
def test_expectation_over_the_probes_is_the_exact_value_and_gradient(inputs, monkeypatch):
    from gpx.methods.exact import iterative_mll

    every = 50**0.5 * torch.eye(50, dtype=DOUBLE)
    monkeypatch.setattr(iterative_mll, "probe_vectors", lambda *_, **__: every)
    model, x, y = problem()
    x.requires_grad_(inputs)
    want = ExactMLL().evidence(model, x, y)
    got = IterativeMLL(tolerance=1e-14).evidence(model, x, y)
    torch.testing.assert_close(got.value, want.value, rtol=1e-9, atol=0)
    targets = [*model.parameters(), *([x] if inputs else [])]
    for a, b in zip(*(torch.autograd.grad(e.value, targets) for e in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_where_data_fill_the_grid_steps_are_fewer_than_with_as_many_greedy_points():
    steps = {}
    for name, rank in (("grief", 60), ("nystrom", 60), ("nystrom", 1)):
        model, x, y = problem(n=300)
        x = torch.rand(300, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
        kernel = RBF(lengthscale=0.2)
        model = ExactGP(
            kernel=kernel,
            mean=model.mean,
            likelihood=Gaussian(1e-3),
            solver="iterative",
            iterative=IterativeOptions(rank=rank, preconditioner=name),
        ).double()
        with torch.no_grad():
            found = IterativeMLL(tolerance=1e-3).evidence(model, x, y)
        steps[name, rank] = found.report.iterations
    assert steps["grief", 60] <= steps["nystrom", 60]
    assert 5 * steps["grief", 60] < steps["nystrom", 1]


@torch.no_grad()
def test_predictions_take_greedy_points_and_are_the_same():
    model, x, y = problem(variance="exact", tolerance=1e-8)
    mean, variance = model.condition(x, y).predict(x[:5] + 0.1)
    other, _, _ = problem()
    other.solver = "cholesky"
    want = other.condition(x, y).predict(x[:5] + 0.1)
    torch.testing.assert_close(mean, want.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(variance, want.variance, rtol=1e-6, atol=1e-7)


def test_mistakes_are_explained_before_the_run():
    model, x, _ = problem(kernel=Matern32(ard_num_dims=2))
    with pytest.raises(ConfigError, match="no product of one-dimensional kernels"):
        model.settle(x)
    with pytest.raises(ConfigError, match=r"preconditioner=grid: expected one of nystrom, grief"):
        IterativeOptions(preconditioner="grid")
