"""Sparse Gaussian process regression with inducing points and a collapsed Gaussian posterior."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.inducing import Selector
from gpx.inducing import selector as named_selector
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import cholesky
from gpx.means.base import Mean
from gpx.models.base import Marginals, Model, Posterior
from gpx.models.nystrom import BlockStore, NystromSums, Whitener, factorise, nystrom_sums
from gpx.sampling import prior_functions


class InnerFactor:
    """B = I + A A^T / noise and what follows from it; float64.

    Attributes:
        factor (M, M): LB = chol(B).
        weights (M,): beta = B^{-1} A r / noise, the posterior mean of L^{-1} u.
        complement (M, M): I - B^{-1}, symmetric.
    """

    def __init__(self, sums: NystromSums, noise: Tensor) -> None:
        self._scaled_gram = sums.gram / noise
        inner = self._scaled_gram.clone()
        inner.diagonal().add_(1.0)
        # at least one on every eigenvalue: a failure can only be NaN, which the error then names
        self.factor, _ = cholesky(
            inner, name="I + A A^T / noise of the inducing points", ladder=(0.0,)
        )
        right = (sums.projected / noise).unsqueeze(1)
        self.weights = torch.cholesky_solve(right, self.factor).squeeze(1)

    @property
    def complement(self) -> Tensor:
        """I - B^{-1} = B^{-1} (A A^T / noise), without the cancellation."""
        found = torch.cholesky_solve(self._scaled_gram, self.factor)
        return 0.5 * (found + found.mT)


def best_noise(sums: NystromSums, n: int, current: Tensor) -> Tensor:
    """Noise variance that maximises the collapsed bound with everything else fixed.

    With the eigenvalues lambda of A A^T and p the squares of A r in its eigenvectors,
    -2 F(s) = n log s + sum log(1 + lambda / s) + (r^T r - sum p / (s + lambda) + T) / s + const,
    looked up on a grid of 400 points from ``current`` (never below it) to twice the mean square of
    the residuals: a step of at most a few per cent, enough for a start.

    Cost: one M x M eigendecomposition.
    """
    values, vectors = torch.linalg.eigh(sums.gram)
    values = values.clamp(min=0.0)
    power = (vectors.mT @ sums.projected).square()
    top = torch.maximum(2.0 * sums.squared_residual / n, current)
    share = torch.linspace(0.0, 1.0, 400, dtype=values.dtype, device=values.device).unsqueeze(1)
    grid = current * (top / current) ** share
    fit = sums.squared_residual - (power / (grid + values)).sum(1, keepdim=True)
    logs = n * grid.log() + (values / grid).log1p().sum(1, keepdim=True)
    return grid[torch.argmin(logs + (fit + sums.trace_error) / grid)].squeeze()


class SGPR(Model):
    """Sparse Gaussian process regression (Titsias 2009).

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_inputs: d, the number of columns of x.
        num_inducing: M.
        num_data: n when it is known; M is then at most n, so that defaults serve small data too.
        selector: how ``initialise`` places the inducing points: "greedy", "kmeans" or "uniform".
        fit_noise: whether ``initialise`` moves the noise variance to where the collapsed bound is
            largest for the new Z. Hyperparameters found without inducing points tend to put into
            the signal what M points cannot explain, and the bound then starts at -T / (2 noise).
        jitter: smallest jitter on K_zz, relative to its mean diagonal; None: 0 in float64 and 1e-6
            in float32. Larger ones are tried when it does not suffice, and reported.

    Attributes:
        inducing_points (M, d): Z, trained with the hyperparameters; zero until ``initialise``.
    """

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_inducing: int = 512,
        num_data: int | None = None,
        selector: str = "greedy",
        fit_noise: bool = True,
        jitter: float | None = None,
    ) -> None:
        super().__init__()
        if num_inducing < 1:
            raise ConfigError(f"num_inducing must be at least 1, got {num_inducing}")
        if jitter is not None and jitter < 0.0:
            raise ConfigError(f"jitter must not be negative, got {jitter}")
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.selector: Selector = named_selector(selector)
        self.fit_noise = fit_noise
        self.jitter = jitter
        size = num_inducing if num_data is None else min(num_inducing, num_data)
        self.inducing_points = nn.Parameter(torch.zeros(size, num_inputs))

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place the inducing points at the current hyperparameters, then refit the noise variance.

        Cost: the selector's, and 1.5 n M^2 multiply-adds for the noise.
        Raises:
            DataError: fewer data than inducing points.
        """
        m = self.inducing_points.shape[0]
        chosen = self.selector(x, self.kernel, m, generator=generator)
        with torch.no_grad():
            self.inducing_points.copy_(chosen)
            if self.fit_noise:
                whitener, _ = factorise(self.kernel, self.inducing_points, self.jitter)
                sums = nystrom_sums(BlockStore(whitener, x), y - self.mean(x))
                current = self.likelihood.noise_variance
                best = best_noise(sums, x.shape[0], current.double())
                self.likelihood.noise_variance = best.to(current.dtype)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``inducing`` (Z) and ``hyperparameters`` (everything else)."""
        rest = [p for p in self.parameters() if p is not self.inducing_points]
        return {"inducing": [self.inducing_points], "hyperparameters": rest}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SGPRPosterior:
        """Optimal q(u) given x (n, d), y (n,). Cost: 1.5 n M^2 multiply-adds, memory O(M^2)."""
        posterior = self.empty_posterior(x.shape[0])
        whitener, _ = factorise(self.kernel, self.inducing_points, self.jitter)
        sums = nystrom_sums(BlockStore(whitener, x), y - self.mean(x))
        inner = InnerFactor(sums, self.likelihood.noise_variance.double())
        posterior.factor.copy_(whitener.factor)
        posterior.inner_factor.copy_(inner.factor)
        posterior.weights.copy_(inner.weights)
        return posterior

    def empty_posterior(self, num_data: int) -> SGPRPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return SGPRPosterior(self.kernel, self.mean, self.inducing_points)


class SGPRPosterior(Posterior):
    """Posterior process of ``SGPR``; needs no training data.

    With u = f(Z) = L v, q(v) = N(weights, B^{-1}) and LB = chol(B).

    Attributes:
        inducing_points (M, d), factor (M, M): Z and L = chol(K_zz).
        inner_factor (M, M), weights (M,): LB and the mean of v.
    """

    inducing_points: Tensor
    factor: Tensor
    inner_factor: Tensor
    weights: Tensor

    def __init__(self, kernel: Kernel, mean: Mean, inducing_points: Tensor) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self.mean = copy.deepcopy(mean).requires_grad_(False)
        z = inducing_points.detach().clone()
        m = z.shape[0]
        self.register_buffer("inducing_points", z)
        self.register_buffer("factor", z.new_zeros(m, m))
        self.register_buffer("inner_factor", z.new_zeros(m, m))
        self.register_buffer("weights", z.new_zeros(m))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: M^2 multiply-adds per row; memory of one block of kernel rows beside the output.
        """
        whitener = Whitener(self.kernel, self.inducing_points, self.factor)
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        for rows, block in BlockStore(whitener, x):
            mean[rows] = self.mean(x[rows]) + block @ self.weights
            prior = self.kernel.diagonal(x[rows])
            unexplained = (prior - torch.linalg.vecdot(block, block)).clamp_(min=0.0)
            column = block.mT
            torch.linalg.solve_triangular(self.inner_factor, column, upper=False, out=column)
            variance[rows] = unexplained + torch.linalg.vecdot(block, block)
        return Marginals(mean, variance)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        f(x) = prior(x) + K_xz K_zz^{-1} (u - prior(Z)) with u ~ q: a prior function from random
        Fourier features, corrected at the inducing points (Wilson et al. 2020). Exact in the mean;
        the variance away from Z is that of the feature approximation.

        Raises:
            ConfigError: the kernel has no random Fourier features.

        Cost: num M^2 multiply-adds once, O(num M) per row.
        """
        z = self.inducing_points
        prior = prior_functions(self.kernel, num, z.shape[1], generator=generator)
        noise = torch.randn(z.shape[0], num, generator=generator, dtype=z.dtype, device=z.device)
        v = self.weights.unsqueeze(1) + torch.linalg.solve_triangular(
            self.inner_factor.mT, noise, upper=True
        )
        v = v - torch.linalg.solve_triangular(self.factor, prior(z).mT, upper=False)
        weights = torch.linalg.solve_triangular(self.factor.mT, v, upper=True).mT

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            return prior(x) + weights @ self.kernel.evaluate(z, x) + self.mean(x)

        return paths
