"""The posterior of several outputs that are modelled jointly."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.inference.dense_factor import row_blocks
from gpx.inference.several_targets import TargetsPosterior, require_no_infinity
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods.gaussian import Gaussian, GaussianOutputs, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.coregional.covariance import latents_of, targets_solver
from gpx.methods.coregional.system import CompleteOutputs, ObservedOutputs, OutputsSystem
from gpx.sampling import SHARED, Frequencies, prior_functions


class CoregionalPosterior(TargetsPosterior):
    """Exact posterior process of p outputs with covariance sum_q (B_q)_ij k_q(x, x').

    The state holds the training inputs, the residuals and the weights: O(n (d + p)). The
    factorisation for variances and samples is recomputed when first needed.

    Args:
        kernel, mean, likelihood, between: of ``CoregionalGP``; copied.

    Attributes:
        inputs (n, d), residual (n, p): the data; NaN where a target is missing.
        alpha (n, p): (sum_q B_q (x) K_q + noise)^{-1} residual, zero where a target is missing.
        row_noise: ``RowNoise.packed`` of the data; None: nothing is known.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs", "residual", "alpha", "row_noise")
    derived: ClassVar[tuple[str, ...]] = ("_made",)
    inputs: Tensor
    residual: Tensor
    alpha: Tensor
    row_noise: Tensor | None

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: GaussianOutputs,
        between: Coregionalisation | nn.ModuleList,
    ) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.likelihood = untrained(likelihood)
        self.between = untrained(between)
        self.register_data_sized()
        self.row_noise = None  # then it is not part of the saved state
        self._made: OutputsSystem | None = None

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor) -> None:
        """Condition on x (n, d) and y (n, p), NaN where a target is missing.

        Raises:
            DataError: infinite targets, or an output without any target.
        """
        residual = y - self.mean(x)[:, None]
        require_no_infinity(residual)
        self._made = None
        self.keep(x, inputs=x, residual=residual)
        self.keep(x, alpha=self._system().solve(self.residual))

    @torch.no_grad()
    def _system(self) -> OutputsSystem:
        if self._made is None:
            noise, kernels, betweens = self._noise(), *self._parts()
            x, y = self.inputs, self.residual
            if len(kernels) > 1 or noise.ndim > 1 or bool(y.isnan().any()):
                self._made = ObservedOutputs(kernels, betweens, x, y, noise)
            else:
                self._made = CompleteOutputs(kernels[0], x, betweens[0], noise)
        return self._made

    def _parts(self) -> tuple[list[Kernel], list[Tensor]]:
        """k_q and B_q (p, p) of every latent process."""
        latents = latents_of(self.kernel, self.between)
        return [each.kernel for each in latents], [each.between.matrix() for each in latents]

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        missing, made = int(self.residual.isnan().sum()), self._made
        jitter = made.report.jitter if isinstance(made, ObservedOutputs) else 0.0
        latents = latents_of(self.kernel, self.between)
        by_targets = missing or len(latents) > 1 or self.row_noise is not None
        return {
            "solver": targets_solver(missing) if by_targets else "eigendecomposition",
            "missing_targets": missing,
            "jitter": jitter,
        }

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance (t, p) of the outputs without noise at x (t, d).

        Cost: n^2 multiply-adds per row; p N^2 of N targets if some are missing, or with several
        latent processes.
        """
        return self._marginals(x)

    def joint_outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (t, p) and covariance (t, p, p) of the outputs of each row, without noise.

        Cost: that of ``predict``.
        """
        system, (kernels, betweens) = self._system(), self._parts()
        p, width = self.likelihood.num_outputs, self.alpha.numel() * len(kernels)
        mean, covariance = x.new_empty(len(x), p), x.new_empty(len(x), p, p)
        mixed = [self.alpha @ between for between in betweens]
        for rows in row_blocks(len(x), width, x):
            crosses = [kernel.evaluate(x[rows], self.inputs) for kernel in kernels]
            mean[rows] = self.mean(x[rows])[:, None]
            covariance[rows] = -system.explained(crosses)
            for kernel, between, cross, weights in zip(
                kernels, betweens, crosses, mixed, strict=True
            ):
                mean[rows] += cross @ weights
                covariance[rows] += kernel.diagonal(x[rows])[:, None, None] * between
        return mean, covariance

    @torch.no_grad()
    def outputs_covariance(self, x: Tensor) -> Tensor:
        """Covariance (t, p, t, p) of the outputs at all pairs of t inputs, without noise.

        Cost: that of ``predict``, and p N multiply-adds for every pair of N targets.
        """
        kernels, betweens = self._parts()
        crosses = [kernel.evaluate(x, self.inputs) for kernel in kernels]
        found = -self._system().explained_jointly(crosses)
        for kernel, between in zip(kernels, betweens, strict=True):
            found += kernel.evaluate(x)[:, None, :, None] * between[:, None, :]
        return found

    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """As in ``Posterior``, for y (m, p); conditions on all rows again."""
        made = CoregionalPosterior(self.kernel, self.mean, self.likelihood, self.between)
        known = self._noise_with(x, noise)
        if known is not None:
            made.know_noise(known)
        targets = self.residual + self.mean(self.inputs)[:, None]
        made.condition_(torch.cat([self.inputs, x]), torch.cat([targets, y]))
        return made

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t, p) by pathwise conditioning.

        Prior functions of every k_q from random Fourier features, mixed by a root of B_q and
        corrected at the data (Wilson et al. 2020). Exact in the mean; elsewhere as ``frequencies``
        says.

        Raises:
            ConfigError: a kernel has no random Fourier features.

        Cost: O(num p n^2) once, p times that where ``predict`` takes the targets together, and
        O(num p n) per row.
        """
        n, d = self.inputs.shape
        latents = latents_of(self.kernel, self.between)
        roots = [each.between.factor() for each in latents]
        plain = [
            prior_functions(
                each.kernel,
                num * root.shape[1],
                d,
                generator=generator,
                frequencies=frequencies,
            )
            for each, root in zip(latents, roots, strict=True)
        ]

        p = self.likelihood.num_outputs

        def prior(x: Tensor) -> Tensor:
            found = x.new_zeros(num, len(x), p)
            for functions, root in zip(plain, roots, strict=True):
                found += functions(x).view(num, root.shape[1], len(x)).mT @ root.mT
            return found

        like = self.residual
        noise = torch.randn(num, n, p, generator=generator, dtype=like.dtype, device=like.device)
        noise *= self._noise().sqrt()
        weights = self._system().solve(self.residual - prior(self.inputs) - noise)
        mixed = [weights @ each.between.matrix() for each in latents]

        def paths(x: Tensor) -> Tensor:
            found = prior(x) + self.mean(x)[:, None]
            for each, own in zip(latents, mixed, strict=True):
                found += each.kernel.evaluate(x, self.inputs) @ own
            return found

        return paths
