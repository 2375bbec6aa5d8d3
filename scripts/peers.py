"""GPyTorch models and settings for benchmarks, with the hyperparameters of gpx."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gpytorch
import linear_operator
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, SoftmaxLikelihood
from gpytorch.means import ConstantMean, Mean
from torch import Tensor

Step = Callable[[], Tensor]


def exactly(value: float) -> Tensor:
    """A value in float64; GPyTorch would round a plain number to float32."""
    return torch.tensor(value, dtype=torch.float64)


def scaled(kernel: Kernel, lengthscale: float, outputscale: float = 1.0) -> ScaleKernel:
    """The kernel with lengthscale and output scale, in float64."""
    found = ScaleKernel(kernel).double()
    found.base_kernel.lengthscale, found.outputscale = exactly(lengthscale), exactly(outputscale)
    return found


def rbf(inputs: int | None, lengthscale: float, outputscale: float = 1.0) -> ScaleKernel:
    """Squared exponential; ``inputs``: number of lengthscales, None: one for all inputs."""
    return scaled(RBFKernel(ard_num_dims=inputs), lengthscale, outputscale)


def matern(nu: float, inputs: int, lengthscale: float, outputscale: float = 1.0) -> ScaleKernel:
    """Matern of smoothness nu with one lengthscale per input."""
    return scaled(MaternKernel(nu=nu, ard_num_dims=inputs), lengthscale, outputscale)


def gaussian(noise: float) -> GaussianLikelihood:
    """Gaussian noise; its variance may be below GPyTorch's usual lower bound of 1e-4."""
    constraint = gpytorch.constraints.GreaterThan(1e-6)
    likelihood = GaussianLikelihood(noise_constraint=constraint).double()
    likelihood.noise = exactly(noise)
    return likelihood


def class_likelihood(classes: int) -> gpytorch.likelihoods.Likelihood:
    """Bernoulli with the probit link, or the softmax of as many functions as classes."""
    if classes == 2:
        return BernoulliLikelihood()
    return SoftmaxLikelihood(num_classes=classes, mixing_weights=False)


class Regression(gpytorch.models.ExactGP):
    """Exact GP, or SGPR if inducing points are given, with device and dtype of the data."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        kernel: Kernel,
        noise: float,
        inducing: Tensor | None = None,
        mean: Mean | None = None,
    ) -> None:
        likelihood = gaussian(noise)
        super().__init__(x, y, likelihood)
        if inducing is not None:
            kernel = InducingPointKernel(kernel, inducing.clone(), likelihood)
        self.mean_module, self.covar_module = mean or ConstantMean(), kernel
        self.to(x).train()

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior at x."""
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def evidence(self) -> Tensor:
        """Log marginal likelihood in nats, summed over a batch; for SGPR, the collapsed bound."""
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self)
        per_row = objective(self(*self.train_inputs), self.train_targets)
        return (per_row * self.train_targets.shape[-1]).sum()

    def step(self, *settings: Any) -> Step:
        """Computes evidence and gradient; ``settings``: functions that make context managers."""

        def step() -> Tensor:
            self.zero_grad()
            with ExitStack() as stack:
                for setting in settings:
                    stack.enter_context(setting())
                value = self.evidence()
                value.backward()
            return value.detach()

        return step


class Sparse(gpytorch.models.ApproximateGP):
    """Whitened SVGP with learned inducing points and zero mean; q(u) starts at the prior.

    Args:
        noise: variance of Gaussian noise; None where there are ``classes``.
        natural: q(u) by its natural parameters, for ``training_step``.
        classes: two (0 and 1, by the probit link and quadrature), or more (by the softmax of as
            many functions that share kernel and inducing points, and random draws).
    """

    def __init__(
        self,
        inducing: Tensor,
        kernel: Kernel,
        noise: float | None,
        *,
        large_batch: bool = False,
        natural: bool = False,
        classes: int | None = None,
    ) -> None:
        kinds = gpytorch.variational
        kind = kinds.NaturalVariationalDistribution if natural else None
        several = classes is not None and classes > 2
        batch = torch.Size([classes] if several else [])
        distribution = (kind or kinds.CholeskyVariationalDistribution)(
            len(inducing), batch_shape=batch
        )
        strategy = gpytorch.variational.VariationalStrategy
        if large_batch:
            strategy = gpytorch.variational.LargeBatchVariationalStrategy
        found = strategy(self, inducing.clone(), distribution, learn_inducing_locations=True)
        # start at the mean of the prior, as gpx does, and not at random
        found.variational_params_initialized.fill_(1)
        if several:
            found = kinds.IndependentMultitaskVariationalStrategy(found, num_tasks=classes)
        super().__init__(found)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel
        self.likelihood = gaussian(noise) if classes is None else class_likelihood(classes)
        self.to(inducing).train()

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior at x."""
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def step(self, x: Tensor, y: Tensor, num_data: int) -> Step:
        """Loss per row and gradient of the stochastic bound on a mini-batch."""
        objective = gpytorch.mlls.VariationalELBO(self.likelihood, self, num_data=num_data)

        def step() -> Tensor:
            self.zero_grad()
            loss = -objective(self(x), y)
            loss.backward()
            return loss.detach()

        return step

    def training_step(
        self, x: Tensor, y: Tensor, num_data: int, rate: float, rate_of_rest: float
    ) -> Step:
        """``step``, then a natural gradient step of q(u), and Adam for all else."""
        ours = [p for p in self.parameters() if id(p) not in set(map(id, self.variational()))]
        natural = gpytorch.optim.NGD(self.variational(), num_data=num_data, lr=rate)
        adam = torch.optim.Adam(ours, lr=rate_of_rest)
        evaluate = self.step(x, y, num_data)

        def step() -> Tensor:
            loss = evaluate()
            natural.step()
            adam.step()
            return loss

        return step

    def variational(self) -> list[torch.nn.Parameter]:
        """Parameters of q(u)."""
        return list(self.variational_parameters())


def with_gradient(evidence: Step) -> Step:
    """A step that computes the evidence and its gradient."""

    def step() -> Tensor:
        value = evidence()
        value.backward()
        return value.detach()

    return step


@contextmanager
def by_cholesky() -> Iterator[None]:
    """Exact solves and log-determinants, whatever the size."""
    with (
        gpytorch.settings.max_cholesky_size(10**9),
        gpytorch.settings.fast_computations(False, False, False),
    ):
        yield


@contextmanager
def by_iterations(
    rank: int | None = None,
    tolerance: float | None = None,
    steps: int | None = None,
    probes: int | None = None,
) -> Iterator[None]:
    """Conjugate gradients and Lanczos quadrature at any size; None: the library's default."""
    chosen = {
        gpytorch.settings.max_preconditioner_size: rank,
        gpytorch.settings.cg_tolerance: tolerance,
        gpytorch.settings.max_lanczos_quadrature_iterations: steps,
        gpytorch.settings.num_trace_samples: probes,
    }
    with ExitStack() as stack:
        stack.enter_context(gpytorch.settings.max_cholesky_size(0))
        stack.enter_context(gpytorch.settings.fast_computations())
        stack.enter_context(gpytorch.settings.min_preconditioning_size(1))
        stack.enter_context(gpytorch.settings.max_cg_iterations(1000))
        for setting, value in chosen.items():
            if value is not None:
                stack.enter_context(setting(value))
        yield


class SeveralTargets(gpytorch.models.ExactGP):
    """Exact GP of several targets, solved by Cholesky factors."""

    def evidence(self) -> Tensor:
        """Log marginal likelihood of all targets in nats."""
        with by_cholesky():
            law = self.likelihood(self(*self.train_inputs))
            return law.log_prob(self.train_targets).sum()


class Products:
    """Counts the columns by which solves multiply the n x n matrix."""

    def __enter__(self) -> Products:
        kind = linear_operator.operators.AddedDiagLinearOperator
        self.kind, self.usual, self.columns = kind, kind._matmul, 0

        def counted(operator: Any, right: Tensor) -> Tensor:
            self.columns += 1 if right.ndim == 1 else right.shape[-1]
            return self.usual(operator, right)

        kind._matmul = counted
        return self

    def __exit__(self, *_: object) -> None:
        self.kind._matmul = self.usual


def product_by_rows(x: Tensor, right: Tensor, kernel: Kernel, entries: int = 2**31) -> Step:
    """K times ``right`` in blocks of rows with at most ``entries`` kernel entries."""
    kernel = kernel.to(x).requires_grad_(False)
    rows = max(1, entries // x.shape[0])

    @torch.no_grad()
    def product() -> Tensor:
        return torch.cat([kernel(part, x).to_dense() @ right for part in x.split(rows)])

    return product
