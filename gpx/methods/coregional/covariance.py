"""The covariance of the observed targets of several outputs, in blocks of pairs of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from gpx.inference.dense_factor import factor_with_noise, row_blocks
from gpx.inference.exact_solver import cholesky_memory
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityTerms
from gpx.inference.several_targets import (
    ObservedTargets,
    OutputsGradient,
    Piece,
    targets_log_density,
)
from gpx.kernels.algebra import Sum
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.linalg import (
    CholeskyReport,
    require_memory,
)


class Latent(NamedTuple):
    """A latent process of several outputs: its part of their covariance is B_ij k(x, x').

    Attributes:
        kernel: k.
        between: B.
    """

    kernel: Kernel
    between: Coregionalisation


def latents_of(kernel: Kernel, between: nn.Module) -> list[Latent]:
    """The latent processes of a model of several outputs.

    Args:
        kernel: of the only one, or the sum of their kernels.
        between: a ``Coregionalisation``, or a list of one for each part of the sum.
    """
    if isinstance(between, Coregionalisation):
        return [Latent(kernel, between)]
    pairs = zip(cast(Sum, kernel).parts, cast(nn.ModuleList, between), strict=True)
    return [Latent(part, cast(Coregionalisation, own)) for part, own in pairs]


def targets_solver(missing: int) -> str:
    """What ``ObservedCovariance`` is solved by, for metrics; ``missing``: number of targets."""
    return f"cholesky of {'observed' if missing else 'all'} targets"


class ObservedCovariance:
    """C = sum_q B_q (x) K_q + noise of the observed targets.

    Args:
        kernels: k_q, with K_q = k_q(x, x).
        betweens (p, p): B_q of each.
        x (n, d), targets: of n rows.

    K_q is evaluated for the n rows, not for the N targets.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        betweens: Sequence[Tensor],
        x: Tensor,
        targets: ObservedTargets,
    ) -> None:
        self.kernels, self.betweens = list(kernels), [each.detach() for each in betweens]
        self.x, self.targets = x.detach(), targets

    def blocks(self) -> Iterator[slice]:
        """Blocks of rows of a matrix of the inputs."""
        yield from row_blocks(len(self.x), len(self.x), self.x)

    def fill(self, buffer: Tensor) -> None:
        """Write the lower triangle of C without noise into ``buffer`` (N, N)."""
        buffer.zero_()
        for rows in self.blocks():
            pieces = list(self.targets.pieces(buffer, rows))
            for kernel, between in zip(self.kernels, self.betweens, strict=True):
                block = kernel.evaluate(self.x[rows], self.x[: rows.stop])
                for piece in pieces:
                    entries = piece.entries(block)
                    piece.of_targets.addcmul_(entries, between[piece.i, piece.j])

    def largest(self) -> Tensor:
        """Largest prior variance () of a target."""
        each = [
            kernel.diagonal(self.x)[self.targets.rows] * between.diagonal()[self.targets.outputs]
            for kernel, between in zip(self.kernels, self.betweens, strict=True)
        ]
        return torch.stack(each).sum(0).max()

    def factor(self, noise: Tensor) -> tuple[Tensor, CholeskyReport]:
        """Upper factor U (N, N), U^T U = C (+ reported jitter); see ``factor_with_noise``.

        Args:
            noise (p,) or (n, p): variances of the outputs, or of every cell.

        Raises:
            ConfigError: the array does not fit into free memory.
            NotPositiveDefinite: see ``gpx.linalg.cholesky``.
        """
        inputs = self.targets.inputs(self.x)
        require_memory(
            cholesky_memory(inputs),
            self.x.device,
            f"the exact covariance of {len(inputs)} targets of {noise.shape[-1]} outputs",
            "use model=SVGP() with likelihood=MixedOutputs(), fewer points, or dtype=float32",
        )
        return factor_with_noise(self.fill, inputs, self.targets.noise(noise), self.largest)

    def cross(self, crosses: Sequence[Tensor]) -> Tensor:
        """Covariances (t, p, N) of the outputs at t inputs with the targets.

        Args:
            crosses (t, n): k_q between these inputs and the training inputs, of each q.
        """
        parts = [
            cross[:, None, self.targets.rows] * between[:, self.targets.outputs]
            for cross, between in zip(crosses, self.betweens, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def gradient(self, twice: Tensor, x: Tensor) -> tuple[list[Tensor], list[KernelGradient]]:
        """Gradients with respect to B_q (p, p) and to the parameters of k_q, of each q.

        Args:
            twice (N, N): two times the gradient with respect to C; symmetric.
            x (n, d): the inputs, which may require a gradient.
        """
        of_between = [torch.zeros_like(between) for between in self.betweens]
        of_kernel = [KernelGradient(kernel, x) for kernel in self.kernels]
        for rows in self.blocks():
            pieces = list(self.targets.pieces(twice, rows))
            for between, found, accumulated in zip(
                self.betweens, of_between, of_kernel, strict=True
            ):
                weigh = _weigh(pieces, between, found)
                accumulated.add_weighed(rows, slice(0, rows.stop), weigh)
        return [0.5 * (each + each.mT) for each in of_between], of_kernel


def _weigh(
    pieces: Sequence[Piece], between: Tensor, of_between: Tensor
) -> Callable[[Tensor], Tensor]:
    """Weights of a block of rows of K_q, for ``KernelGradient.add_weighed``.

    Below the diagonal, an entry of K_q counts twice, and so do the pieces of two outputs: twice the
    gradient is their weight. Within a piece on the diagonal each half counts for itself.

    Args:
        pieces: of twice the gradient with respect to C.
        between: B_q (p, p).
        of_between (p, p): takes the gradient with respect to B_q of these pieces, that of both
            entries i, j and j, i in the lower triangle.
    """

    def weigh(block: Tensor) -> Tensor:
        weight = torch.zeros_like(block)
        for piece in pieces:
            i, j, view = piece[:3]
            share = 0.5 if piece.symmetric else 1.0
            piece.add_to(weight, share * between[i, j])
            of_between[i, j] += share * (view * piece.entries(block)).sum()
        return weight

    return weigh


@torch.no_grad()
def observed_log_density(
    kernels: Sequence[Kernel],
    x: Tensor,
    residual: Tensor,
    betweens: Sequence[Tensor],
    noise: Tensor,
    *,
    gradient: bool,
) -> tuple[LogDensityTerms, OutputsGradient | None, CholeskyReport]:
    """log N(r; 0, C), C = sum_q B_q (x) K_q + noise of the observed targets, and its gradient.

    With a = C^{-1} r the derivative with respect to C is G = (a a^T - C^{-1}) / 2, of which
    sum_ij (B_q)_ij G_ij is that with respect to K_q, and (G_ij, K_q) that with respect to
    (B_q)_ij, where G_ij is the block of outputs i and j. G is written over the factor.

    Args:
        kernels: k_q.
        x (n, d), residual (n, p): NaN where a target is missing.
        noise (p,) or (n, p): variances of the outputs, or of every cell.
        betweens (p, p): B_q of each kernel.
        gradient: whether to compute the gradient (two thirds of the work).

    Exactness: as ``log_marginal_likelihood``.
    Cost: N^3/3 multiply-adds for the value and N^3 with the gradient, for N targets; one N x N
    array and blocks of rows of n columns. Kernels are evaluated for n^2 pairs, not N^2.
    Raises: DataError, of ``ObservedTargets``; NotPositiveDefinite; ConfigError when the array does
    not fit.
    Source: Alvarez, Rosasco and Lawrence 2012, section 4.2.
    """
    covariance = ObservedCovariance(kernels, betweens, x, ObservedTargets(residual))
    return targets_log_density(covariance, x, residual, noise, gradient=gradient)
