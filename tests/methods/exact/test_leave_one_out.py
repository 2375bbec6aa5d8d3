"""Leave-one-out densities against posteriors of the other rows, gradients against autograd."""

import math
import sys

import gpytorch
import pytest
import torch
from torch.distributions import Normal

from gpx.errors import ConfigError, DataError
from gpx.inference import dense_factor
from gpx.kernels import RBF, Matern32, Matern52
from gpx.likelihoods import Gaussian, Laplace
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant, Linear
from gpx.models import SGPR, ExactGP
from gpx.objectives import LeaveOneOut

pytestmark = pytest.mark.usefixtures("float64_by_default")

KERNELS = {
    "matern32": lambda: Matern32(3, [0.8, 1.5, 2.0], 1.4),
    "sum": lambda: RBF(lengthscale=0.7) + Matern52(active_dims=[1]) * 0.5,
}


def problem(kernel="matern32", n=30, row_noise=False):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=draws)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, generator=draws)
    model = ExactGP(kernel=KERNELS[kernel](), mean=Linear(3, bias=0.3), likelihood=Gaussian(0.07))
    if row_noise:
        known, relative = torch.rand(2, n, generator=draws)
        model.know_noise(RowNoise(0.2 * known, 0.5 + relative))
    return model, x, y


def dense(model, x, y, relative_jitter=0.0):
    """The same sum, plainly, differentiated by autograd."""
    noise = model.likelihood.noise_variance
    if model.row_noise is not None:
        noise = model.row_noise.variance(noise)
    matrix = model.kernel.evaluate(x, x) + noise * torch.eye(len(x))
    matrix = matrix + relative_jitter * matrix.diagonal().mean() * torch.eye(len(x))
    inverse = torch.linalg.inv(matrix)
    alpha, precision = inverse @ (y - model.mean(x)), inverse.diagonal()
    each = 0.5 * precision.log() - 0.5 * alpha.square() / precision - 0.5 * math.log(2 * math.pi)
    return each.sum()


def require_same(found, wanted, model, x):
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=0)
    leaves = [*model.parameters(), x]
    for got, want in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, leaves), strict=True
    ):
        assert bool((want != 0.0).any())
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("row_noise", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_value_and_gradient_equal_autograd(kernel, row_noise, monkeypatch):
    monkeypatch.setitem(dense_factor.BLOCK_BYTES, "cpu", 8 * 30 * 7)  # several blocks of rows
    model, x, y = problem(kernel, row_noise=row_noise)
    x.requires_grad_()
    found = LeaveOneOut().evidence(model, x, y)
    require_same(found.value, dense(model, x, y), model, x)
    assert found.kind == "estimate"
    torch.testing.assert_close(sum(found.parts.values()), found.value.detach())
    with torch.no_grad():
        again = LeaveOneOut().evidence(model, x, y).value
    torch.testing.assert_close(again, found.value.detach())


@pytest.mark.filterwarnings("ignore:.* added to the noise variance")
@pytest.mark.parametrize("row_noise", [False, True])
def test_jitter_is_part_of_value_and_gradient(row_noise, monkeypatch):
    monkeypatch.setitem(sys.modules["gpx.linalg.cholesky"].LADDER, torch.float64, (1e-2,))
    model, x, y = problem(row_noise=row_noise)
    x.requires_grad_()
    found = LeaveOneOut().evidence(model, x, y)
    assert found.report.relative == 1e-2
    require_same(found.value, dense(model, x, y, 1e-2), model, x)


@pytest.mark.parametrize("row_noise", [False, True])
def test_each_term_is_the_density_under_the_posterior_of_the_other_rows(row_noise):
    model, x, y = problem(n=9, row_noise=row_noise)
    known, total = model.row_noise, 0.0
    for i in range(9):
        rest = torch.arange(9) != i
        noise = model.likelihood.noise_variance
        if known is not None:
            model.row_noise, noise = known.of(rest), known.variance(noise)[i]
        mean, variance = model.condition(x[rest], y[rest]).predict(x[i : i + 1])
        total += Normal(mean, (variance + noise).sqrt()).log_prob(y[i]).item()
    model.row_noise = known
    assert LeaveOneOut().evidence(model, x, y).value.item() == pytest.approx(total, rel=1e-9)


def test_value_equals_gpytorch():
    class Theirs(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.MaternKernel(nu=1.5)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    _, x, y = problem()
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    theirs = Theirs(x, y, likelihood).double()
    theirs.covar_module.lengthscale, likelihood.noise = 0.9, 0.07
    score = gpytorch.mlls.LeaveOneOutPseudoLikelihood(likelihood, theirs)(theirs(x), y)
    ours = ExactGP(
        kernel=Matern32(lengthscale=0.9, outputscale=None),
        mean=Constant(),
        likelihood=Gaussian(0.07),
    )
    found = LeaveOneOut().evidence(ours, x, y).value / len(x)
    torch.testing.assert_close(found, score.double(), rtol=1e-6, atol=0)


def test_unsupported_models_are_refused():
    model, x, y = problem()
    with pytest.raises(DataError, match="finite"):
        LeaveOneOut().evidence(model, x, y.log())
    model.solver = "iterative"
    for call in (lambda: LeaveOneOut().check(model), lambda: LeaveOneOut().evidence(model, x, y)):
        with pytest.raises(ConfigError, match="solver=iterative does not have: take solver=chol"):
            call()
    model.solver, model.likelihood = "cholesky", Laplace()
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood"):
        LeaveOneOut().check(model)
    parts = {"kernel": RBF(), "mean": Constant(), "likelihood": Gaussian()}
    with pytest.raises(ConfigError, match="needs ExactGP, or a model with"):
        LeaveOneOut().check(SGPR(**parts, num_inducing=4, num_inputs=3))


@pytest.mark.parametrize("row_noise", [False, True])
def test_the_posterior_has_leave_one_out_predictions(row_noise):
    model, x, y = problem(n=8, row_noise=row_noise)
    left = model.condition(x, y).leave_one_out()
    known = model.row_noise
    for i in range(8):
        rest = torch.arange(8) != i
        noise = model.likelihood.noise_variance
        if known is not None:
            model.row_noise, noise = known.of(rest), known.variance(noise)[i]
        mean, variance = model.condition(x[rest], y[rest]).predict(x[i : i + 1])
        torch.testing.assert_close(left.residual[i], y[i] - mean[0])
        torch.testing.assert_close(left.variance[i], (variance[0] + noise).detach())
    model.row_noise = known
    total = left.log_density().sum()
    torch.testing.assert_close(total, LeaveOneOut().evidence(model, x, y).value.detach())
