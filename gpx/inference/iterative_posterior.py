"""Exact posterior process by iterative solves: nothing of size n x n."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.errors import NotAvailable, class_name
from gpx.inference.exact_solver import IterativeOptions
from gpx.inference.gaussian_posterior import GaussianPosterior
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.inference.predictive_variance import RULES, VarianceRule
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import PosteriorMeanError, SolveReport, UnconvergedWarning, conjugate_gradients
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.sampling import SHARED, ConditionedFunctions, Frequencies
from gpx.warned_line import users_line

BLOCK_BYTES = {"cpu": 2**26, "cuda": 2**30}
"""Bytes of one block of covariances with test points."""


class IterativePosterior(GaussianPosterior):
    """Posterior process of ``ExactGP`` by preconditioned conjugate gradients.

    The mean k_*^T alpha is certified to be within ``mean_error`` of exact, everywhere; covariances
    with the data are in float64 for it, whatever the precision of the data. Variances follow
    ``options.variance``; their certificates are in ``facts``. The saved state is the training
    inputs, the residuals and alpha; the rest is rebuilt at the first prediction.

    Attributes:
        inputs (n, d), residual (n,): x, y - m(x).
        alpha (n,), mean_error (): K^{-1} (y - m(x)) in float64, and a bound on the error of every
            predicted mean, in the unit of the targets.
    """

    data_sized: ClassVar[tuple[str, ...]] = (*GaussianPosterior.data_sized, "alpha", "mean_error")
    derived: ClassVar[tuple[str, ...]] = ("_system", "_rule")
    alpha: Tensor
    mean_error: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        options: IterativeOptions,
    ) -> None:
        super().__init__(kernel, mean, likelihood)
        self.options = options
        self._system: PreconditionedKernel | None = None
        self._rule: VarianceRule | None = None
        self._widest = -1.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._widest is None:  # how earlier versions said that a variance had no certificate
            self._widest = math.inf

    def system(self) -> PreconditionedKernel:
        """K and Q at the posterior's hyperparameters; built once."""
        if self._system is None:
            # variances need greedy points
            greedy = replace(self.options, preconditioner="nystrom")
            self._system = PreconditionedKernel(
                self.kernel, self.inputs, self.likelihood.noise_variance, greedy
            )
        return self._system

    def know_noise(self, noise: RowNoise) -> None:
        """Refused: solves are for one noise variance."""
        raise NotAvailable(
            f"{class_name(self)} has one noise variance for all rows: leave noise= out"
        )

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor) -> SolveReport:
        """Solve for alpha given x (n, d) and y (n,); return the solve's report.

        Raises:
            DataError: targets that are not finite.
        """
        self._system, self._rule, self._widest = None, None, -1.0
        self.keep_data(x, y)
        alpha, errors, report = self._solve(self.residual.double().unsqueeze(1))
        self.alpha, self.mean_error = alpha.squeeze(1), errors[0]
        return report

    def _solve(self, right: Tensor) -> tuple[Tensor, Tensor, SolveReport]:
        """K^{-1} right (n, c), certified errors of k_*^T times it (c,), report."""
        system = self.system()
        tolerance = self.options.tolerance * float(system.noise.sqrt())
        found = conjugate_gradients(
            system.matmul,
            right,
            preconditioner=system.preconditioner,
            stop=PosteriorMeanError(tolerance, system.prior_variance),
            max_iterations=self.options.max_iterations,
            product_dtype=system.product_dtype,
            on_failure="warn",
        )
        rest = found.residual
        squared = (rest * system.preconditioner.solve(rest)).sum(0)
        # where rounding makes that negative (very small noise), use noise I <= K instead
        squared = torch.where(squared >= 0.0, squared, rest.square().sum(0) / system.noise)
        return found.solution, (system.prior_variance * squared).sqrt(), found.report

    def facts(self) -> dict[str, bool | int | float | str]:
        """Solver, tolerance and certificates of the mean and of the variances predicted so far.

        ``variance_error_bound`` is relative to the predictive variance of an observation; there is
        none before the first prediction.
        """
        found: dict[str, bool | int | float | str] = {
            "solver": "iterative",
            "tolerance": self.options.tolerance,
            "mean_error_bound": float(self.mean_error),
            "variance": self.options.variance,
        }
        if self._widest >= 0.0:
            bounded = math.isfinite(self._widest)
            found["variance_error_bound"] = self._widest if bounded else "none"
        return found

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Variances whose certificate is wider than the tolerance are returned with a warning
        (``UnconvergedWarning``) that states the width.

        Cost: n kernel entries per row, and that of ``options.variance``; memory of a block of rows.
        """
        system = self.system()
        if self._rule is None:
            self._rule = RULES[self.options.variance](system, self.options)
        n, widest = self.inputs.shape[0], -1.0
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        budget = BLOCK_BYTES.get(x.device.type, BLOCK_BYTES["cpu"])
        for rows in row_slices(x.shape[0], max(1, budget // (8 * n))):
            part = x[rows]
            # large weights of both signs cancel, so covariances and sums are in float64
            wide = part.double()
            cross = system.kernel.evaluate(system.x, wide)
            mean[rows] = self.mean(part) + (cross.mT @ self.alpha.double()).to(x.dtype)
            found = self._rule(cross, system.kernel.diagonal(wide))
            variance[rows] = found.variance.clamp(min=0.0).to(x.dtype)
            predicted = found.variance.detach()
            certified = (predicted - found.gap).clamp(min=0.0)
            relative = (predicted - certified) / (certified + system.noise)
            widest = max(widest, float(relative.nan_to_num(torch.inf).max()))
        self._note(widest)
        return Marginals(mean, variance)

    def _note(self, widest: float) -> None:
        """Keep the widest certificate for ``facts``; warn when it is wider than the tolerance."""
        self._widest = max(self._widest, widest)
        # without a certificate, of rules that have none, ``facts`` says "none"
        if self.options.tolerance < widest < math.inf:
            warnings.warn(
                f"predictive variances are certified to a relative error of {widest:.2g} only, not "
                f"{self.options.tolerance:g} (they err upwards); raise "
                f"rank={self.options.rank} or variance_neighbours="
                f"{self.options.variance_neighbours}, or take IterativeOptions.variance=exact",
                UnconvergedWarning,
                stacklevel=users_line(),
            )

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        As ``ExactPosterior.sample_paths``, with one batched solve for the corrections.

        Raises:
            ConfigError: the kernel has no random Fourier features.

        Cost: one solve with ``num`` columns, O(num n) per row.
        """
        prior, gap = self.prior_paths(num, generator, frequencies)
        weights = self._solve(gap.mT.double())[0].mT
        return ConditionedFunctions(prior, weights, self.inputs, self.kernel, self.mean)
