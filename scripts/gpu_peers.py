"""GPyTorch's way of what ``gpu_stages.py`` measures, on the same device: one step each."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import torch
from torch import Tensor

Step = Callable[[], object]


def covariance(inputs: int) -> gpytorch.kernels.Kernel:
    """The kernel of all comparisons."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inputs))
    kernel.outputscale = 1.0
    kernel.base_kernel.lengthscale = 2.0
    return kernel


def peer_product(x: Tensor, right: Tensor, entries: int = 2**31) -> Step:
    """K right by blocks of rows, as many as hold ``entries`` kernel entries."""
    kernel = covariance(x.shape[1]).to(x).requires_grad_(False)
    rows = max(1, entries // x.shape[0])

    @torch.no_grad()
    def product() -> Tensor:
        return torch.cat([kernel(part, x).to_dense() @ right for part in x.split(rows)])

    return product


class Sparse(gpytorch.models.ApproximateGP):
    """Whitened SVGP with the strategy for large batches."""

    def __init__(self, inducing: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        strategy = gpytorch.variational.LargeBatchVariationalStrategy(
            self, inducing, distribution, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = covariance(inducing.shape[1])

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def peer_svgp(inducing: Tensor, x: Tensor, y: Tensor) -> Step:
    """One loss and gradient of the stochastic bound."""
    model = Sparse(inducing.clone()).to(x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
    likelihood.noise = 0.1
    model.variational_strategy.variational_params_initialized.fill_(1)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=36_000)
    model.train()

    def step() -> None:
        model.zero_grad()
        likelihood.zero_grad()
        (-objective(model(x), y)).backward()

    return step


class Regression(gpytorch.models.ExactGP):
    """Exact, or SGPR where inducing points are given."""

    def __init__(self, x: Tensor, y: Tensor, inducing: Tensor | None = None) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        likelihood.noise = 0.1
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = covariance(x.shape[1])
        if inducing is not None:
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                self.covar_module, inducing_points=inducing, likelihood=likelihood
            )

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def _marginal(model: Regression, x: Tensor, y: Tensor) -> Step:
    model = model.to(x)
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def step() -> None:
        model.zero_grad()
        with gpytorch.settings.fast_computations(log_prob=False):
            (-objective(model(x), y)).backward()

    return step


def peer_sgpr(inducing: Tensor, x: Tensor, y: Tensor) -> Step:
    """One loss and gradient of the collapsed bound."""
    return _marginal(Regression(x, y, inducing), x, y)


def peer_exact(x: Tensor, y: Tensor) -> Step:
    """One loss and gradient of the log marginal likelihood by Cholesky."""
    return _marginal(Regression(x, y), x, y)
