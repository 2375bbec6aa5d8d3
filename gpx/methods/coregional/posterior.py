"""The posterior of several outputs that are modelled jointly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.inference.dense_factor import row_blocks
from gpx.inference.several_targets import TargetsPosterior
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, untrained
from gpx.methods.coregional.covariance import latents_of, targets_solver
from gpx.methods.coregional.system import CompleteOutputs, ObservedOutputs, OutputsSystem
from gpx.sampling import SHARED, Frequencies, prior_functions


class CoregionalPosterior(TargetsPosterior[OutputsSystem]):
    """Exact posterior process of p outputs with covariance sum_q (B_q)_ij k_q(x, x').

    Args:
        kernel, mean, likelihood, between: of ``CoregionalGP``; copied.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: GaussianOutputs,
        between: Coregionalisation | nn.ModuleList,
    ) -> None:
        super().__init__(kernel, mean, likelihood)
        self.between = untrained(between)

    def prior_mean(self, x: Tensor) -> Tensor:
        """As in ``TargetsPosterior``, the same for all: (n, 1)."""
        return self.mean(x)[:, None]

    def _factorised(self) -> OutputsSystem:
        noise, kernels, betweens = self._noise(), *self._parts()
        x, y = self.inputs, self.residual
        if len(kernels) > 1 or noise.ndim > 1 or bool(y.isnan().any()):
            return ObservedOutputs(kernels, betweens, x, y, noise)
        return CompleteOutputs(kernels[0], x, betweens[0], noise)

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
            mean[rows] = self.prior_mean(x[rows])
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
            found = prior(x) + self.prior_mean(x)
            for each, own in zip(latents, mixed, strict=True):
                found += each.kernel.evaluate(x, self.inputs) @ own
            return found

        return paths
