"""The covariance of observed values and derivatives, in blocks of pairs of targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inference.dense_factor import factor_with_noise, row_blocks
from gpx.inference.exact_solver import cholesky_memory
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.several_targets import FactoredTargets, ObservedTargets, Piece
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import Input, KernelDerivatives
from gpx.linalg import CholeskyReport, require_memory
from gpx.means.base import Mean

Inputs = tuple[Input, ...]
"""Of each target the column of x by which f is differentiated; None: f itself."""


def require_inputs(inputs: Inputs, x: Tensor) -> None:
    """Raise ConfigError if x (n, d) lacks an input by which f is differentiated."""
    d = x.shape[1]
    for column in inputs:
        if column is not None and column >= d:
            raise ConfigError(
                f"with_respect_to={list(inputs[1:])} names input {column}, and x has {d} columns, "
                "numbered from 0"
            )


def prior_means(mean: Mean, x: Tensor, inputs: Inputs) -> Tensor:
    """m(x) and its derivatives (n, p) at x (n, d), differentiable as ``mean`` is.

    Raises:
        ConfigError: x lacks an input by which is differentiated.
    """
    require_inputs(inputs, x)
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        at = x if x.requires_grad else x.detach().clone().requires_grad_()
        value = mean(at)
        slopes: Tensor | None = None
        if value.requires_grad:
            (slopes,) = torch.autograd.grad(
                value.sum(), at, create_graph=keep, retain_graph=True, allow_unused=True
            )
        slopes = torch.zeros_like(at) if slopes is None else slopes
        columns = [value if i is None else slopes[:, i] for i in inputs]
        found = torch.stack(columns, 1)
    return found if keep else found.detach()


def all_pairs(kernel: Kernel, left: Tensor, right: Tensor) -> KernelDerivatives:
    """Derivatives of k(left, right) (n1, n2) for inputs (n1, d) and (n2, d)."""
    return kernel.derivatives(left.unsqueeze(1), right.unsqueeze(0))


class ObservedDerivatives:
    """C = covariance of the observed values and derivatives plus noise.

    Args:
        kernel: k of the function.
        inputs: what each target is differentiated by.
        x (n, d), targets: of n rows.

    Profiles are evaluated for the n^2 pairs of rows, once in the evidence and once in its gradient;
    an entry of C then takes a few products.
    """

    def __init__(self, kernel: Kernel, inputs: Inputs, x: Tensor, targets: ObservedTargets) -> None:
        self.kernel, self.inputs, self.x, self.targets = kernel, inputs, x.detach(), targets

    def blocks(self, held: int) -> Iterator[slice]:
        """Blocks of rows, for ``held`` arrays of a block's rows by n at a time."""
        yield from row_blocks(len(self.x), held * len(self.x), self.x)

    def fill(self, buffer: Tensor) -> None:
        """Write the lower triangle of C without noise into ``buffer`` (N, N)."""
        for rows in self.blocks(self.x.shape[1] + 6):
            found = all_pairs(self.kernel, self.x[rows], self.x[: rows.stop])
            for piece in self.targets.pieces(buffer, rows):
                piece.of_targets.copy_(piece.entries(self._entry(found, piece)))

    def _entry(self, found: KernelDerivatives, piece: Piece) -> Tensor:
        """Covariances of all inputs of a block, of the two targets of a piece."""
        own, other = self.inputs[piece.i], self.inputs[piece.j]
        return found.entry(other, own) if piece.transposed else found.entry(own, other)

    def largest(self) -> Tensor:
        """Largest prior variance () of a target."""
        return self.prior(self.x).diagonal(dim1=1, dim2=2).max()

    def prior(self, x: Tensor) -> Tensor:
        """Prior covariances (t, p, p) of the targets of each row of x (t, d)."""
        found = self.kernel.derivatives(x, x)
        rows = [torch.stack([found.entry(i, j) for j in self.inputs], 1) for i in self.inputs]
        return torch.stack(rows, 1)

    def factor(self, noise: Tensor) -> tuple[Tensor, CholeskyReport]:
        """Upper factor U (N, N), U^T U = C (+ reported jitter); see ``factor_with_noise``.

        Args:
            noise (p,) or (n, p): variances of the targets, or of every cell.

        Raises:
            ConfigError: the array does not fit into free memory, or the kernel has no derivatives.
            NotPositiveDefinite: see ``gpx.linalg.cholesky``.
        """
        inputs = self.targets.inputs(self.x)
        require_memory(
            cholesky_memory(inputs),
            self.x.device,
            f"the exact covariance of {len(inputs)} values and derivatives",
            "use fewer rows, fewer derivatives, or dtype=float32",
        )
        return factor_with_noise(self.fill, inputs, self.targets.noise(noise), self.largest)

    def cross(self, x: Tensor) -> Tensor:
        """Covariances (t, p, N) of values and derivatives at x (t, d) with the targets."""
        found = all_pairs(self.kernel, x, self.x)
        rows = [
            torch.cat(
                [
                    found.entry(i, j)[:, self.targets.rows[self.targets.of_output(place)]]
                    for place, j in enumerate(self.inputs)
                ],
                1,
            )
            for i in self.inputs
        ]
        return torch.stack(rows, 1)

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """Prior covariances (t, p, s, p) of values and derivatives at t and at s inputs."""
        found = all_pairs(self.kernel, left, right)
        rows = [torch.stack([found.entry(i, j) for j in self.inputs], 2) for i in self.inputs]
        return torch.stack(rows, 1)

    def gradient(self, twice: Tensor, x: Tensor) -> tuple[list[Tensor], list[KernelGradient]]:
        """As in ``TargetsCovariance``; there are no matrices between outputs."""
        accumulated = KernelGradient(self.kernel, x)
        p = len(self.inputs)
        for rows in self.blocks(p * (p + 5)):  # the graph of a block is held whole
            pieces = list(self.targets.pieces(twice, rows))
            accumulated.add_total(rows, slice(0, rows.stop), partial(self._total, pieces))
        return [], [accumulated]

    def _total(
        self, pieces: Sequence[Piece], kernel: Kernel, left: Tensor, right: Tensor
    ) -> Tensor:
        """Sum () of the covariances of a block times their weights, as in ``_weigh`` there."""
        found = all_pairs(kernel, left, right)
        sums = [
            (0.5 if piece.symmetric else 1.0)
            * (piece.entries(self._entry(found, piece)) * piece.of_targets).sum()
            for piece in pieces
        ]
        return torch.stack(sums).sum()


class DerivativeSystem(FactoredTargets):
    """C factorised, for the solves and reductions of variance of a posterior.

    Args:
        kernel, inputs: of ``ObservedDerivatives``.
        noise (p,) or (n, p): variances of the targets, or of every cell.
        x (n, d), y (n, p): NaN where a target is missing.

    Cost: N^3/3 multiply-adds and one N x N array for N observed values and derivatives.
    """

    def __init__(self, kernel: Kernel, inputs: Inputs, x: Tensor, y: Tensor, noise: Tensor) -> None:
        targets = ObservedTargets(y, some_empty=True)
        self.covariance = ObservedDerivatives(kernel, inputs, x, targets)
        super().__init__(self.covariance, noise)


def as_inputs(with_respect_to: Sequence[int]) -> Inputs:
    """What the targets are differentiated by: f itself first."""
    return (None, *with_respect_to)
