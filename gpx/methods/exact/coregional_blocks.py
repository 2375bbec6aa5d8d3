"""The covariance of the observed targets of several outputs, in blocks of pairs of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from gpx.constants import LOG_TWO_PI
from gpx.errors import DataError
from gpx.inference.exact_solver import cholesky_memory
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityTerms
from gpx.kernels.algebra import Sum
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.linalg import (
    CholeskyReport,
    inverse_from_factor,
    require_memory,
    upper_solve,
    with_gradient,
)
from gpx.methods.exact.model import factor_with_noise, row_blocks

Places = slice | Tensor


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


class Piece(NamedTuple):
    """A piece of a matrix of targets (N, N) over a block of rows of a matrix of inputs (n, n).

    Attributes:
        i, j: the outputs, i >= j.
        of_targets: view of the piece, transposed where the targets of j are in the block's rows.
        of_inputs: index of its entries within the block of rows.
        symmetric: whether it lies on the diagonal, both halves of it.
        transposed: whether the targets of j, not of i, are in the block's rows.
    """

    i: int
    j: int
    of_targets: Tensor
    of_inputs: tuple[Places, Places]
    symmetric: bool
    transposed: bool

    def entries(self, block: Tensor) -> Tensor:
        """The piece's entries of a block of rows: a view where all of its targets are there."""
        return block[self.of_inputs]

    def add_to(self, block: Tensor, factor: Tensor) -> None:
        """Add ``factor`` () times the piece to its entries of a block of rows."""
        found = self.entries(block)
        found.addcmul_(self.of_targets, factor)
        if any(isinstance(places, Tensor) for places in self.of_inputs):
            block[self.of_inputs] = found


class ObservedTargets:
    """The N targets that are not missing, as one list, those of an output next to each other.

    Args:
        y (n, p): NaN where a target is missing.
        some_empty: whether outputs may have no target at all.

    Attributes:
        rows (N,), outputs (N,): their indices in y.
        counts: targets of each output.

    Cost: one transfer from the device.

    Raises:
        DataError: an output, or all of them, have no target, of one row or more.
    """

    def __init__(self, y: Tensor, *, some_empty: bool = False) -> None:
        present = (~y.isnan()).cpu()
        counts = present.sum(0).tolist()
        if len(y) and not any(counts):
            raise DataError("every target is missing: y holds nothing but NaN")
        if len(y) and not all(counts) and not some_empty:
            raise DataError(
                f"output {counts.index(0)} of {y.shape[1]} has no target in any row; leave it out"
            )
        outputs, rows = present.mT.nonzero(as_tuple=True)
        self.rows, self.outputs = rows.to(y.device), outputs.to(y.device)
        self._rows = rows.split(counts)
        self._starts = [sum(counts[:output]) for output in range(len(counts))]
        self._complete = [count == len(y) for count in counts]
        self.count, self.counts = len(rows), counts

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs and number of the output of every target (N, d + 1), for x (n, d)."""
        return torch.cat([x[self.rows], self.outputs.to(x)[:, None]], 1)

    def noise(self, noise: Tensor) -> Tensor:
        """Noise variances (N,) of the targets, from those of outputs (p,) or of cells (n, p)."""
        return noise[self.outputs] if noise.ndim == 1 else noise[self.rows, self.outputs]

    def of_output(self, output: int) -> slice:
        """The places of an output's targets in the list."""
        start = self._starts[output]
        return slice(start, start + len(self._rows[output]))

    def pieces(self, matrix: Tensor, rows: slice) -> Iterator[Piece]:
        """The lower triangle of a matrix of targets over some rows of that of the inputs.

        Every entry of the lower triangle of ``matrix``, and the upper half of blocks on the
        diagonal, is in a piece of one of the blocks of rows that cover 0 ... n.

        Args:
            matrix (N, N): symmetric.
            rows: of the inputs; the block is that of the columns 0 ... rows.stop.
        """
        before, past = slice(0, rows.start), slice(0, rows.stop)
        for i in range(len(self._rows)):
            for j in range(i):
                yield self._piece(matrix, i, j, rows, past)
                if rows.start:
                    yield self._piece(matrix, i, j, before, rows, transposed=True)
            if rows.start:
                yield self._piece(matrix, i, i, rows, before)
            yield self._piece(matrix, i, i, rows, rows, symmetric=True)

    def _piece(
        self,
        matrix: Tensor,
        i: int,
        j: int,
        left: slice,
        right: slice,
        *,
        transposed: bool = False,
        symmetric: bool = False,
    ) -> Piece:
        own, at = self._within(i, left)
        other, to = self._within(j, right)
        view, start = matrix[own, other], left.start
        if transposed:
            view, start, at, to = view.mT, right.start, to, at
        at = at - start if isinstance(at, Tensor) else slice(None)
        if isinstance(at, Tensor) and isinstance(to, Tensor):
            at = at[:, None]
        return Piece(i, j, view, (at, to), symmetric, transposed)

    def _within(self, output: int, rows: slice) -> tuple[slice, Places]:
        """Targets of an output in some rows: their places in the list, and their rows."""
        start = self._starts[output]
        if self._complete[output]:
            return slice(start + rows.start, start + rows.stop), rows
        ends = torch.searchsorted(self._rows[output], torch.tensor([rows.start, rows.stop]))
        first, last = ends.tolist()
        places = slice(start + first, start + last)
        return places, self.rows[places]


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


class OutputsGradient(NamedTuple):
    """Gradient of the log density of the targets of several outputs.

    Attributes:
        residual (n, p), noise (p,) or (n, p): with respect to y - m(x) and the noise variances.
        betweens (p, p), kernels: with respect to B_q and the parameters of k_q, of each q.
    """

    residual: Tensor
    noise: Tensor
    betweens: Sequence[Tensor]
    kernels: Sequence[KernelGradient]

    def attached(
        self, value: Tensor, residual: Tensor, noise: Tensor, betweens: Sequence[Tensor]
    ) -> Tensor:
        """``value`` () with this gradient."""
        inputs, gradients = (
            [residual, noise, *betweens],
            [self.residual, self.noise, *self.betweens],
        )
        for kernel in self.kernels:
            inputs += kernel.inputs()
            gradients += kernel.gradients()
        return with_gradient(value, inputs, gradients)


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


class TargetsCovariance(Protocol):
    """What ``targets_log_density`` needs of the covariance C of the observed targets."""

    targets: ObservedTargets

    def factor(self, noise: Tensor) -> tuple[Tensor, CholeskyReport]:
        """Upper factor U (N, N), U^T U = C (+ reported jitter), given noise (p,) or (n, p)."""

    def gradient(self, twice: Tensor, x: Tensor) -> tuple[list[Tensor], list[KernelGradient]]:
        """Gradients with respect to matrices between outputs, and to parameters of kernels.

        Args:
            twice (N, N): two times the gradient with respect to C; symmetric.
            x (n, d): the inputs, which may require a gradient.
        """


@torch.no_grad()
def targets_log_density(
    covariance: TargetsCovariance, x: Tensor, residual: Tensor, noise: Tensor, *, gradient: bool
) -> tuple[LogDensityTerms, OutputsGradient | None, CholeskyReport]:
    """As ``observed_log_density``, with the covariance of the targets given."""
    targets = covariance.targets
    upper, report = covariance.factor(noise)
    known = residual.detach()[targets.rows, targets.outputs]
    alpha = upper_solve(upper, known.unsqueeze(1)).squeeze(1)
    terms = LogDensityTerms(
        fit=-0.5 * torch.dot(known, alpha).double(),
        complexity=-upper.diagonal().double().log().sum(),
        constant=upper.new_tensor(-0.5 * len(known) * LOG_TWO_PI, dtype=torch.float64),
    )
    if not gradient:
        return terms, None, report
    twice = inverse_from_factor(upper)
    torch.addr(twice, alpha, alpha, beta=-1.0, out=twice)
    if report.relative:  # the jitter is a multiple of the mean of C's diagonal
        twice.diagonal().add_(twice.diagonal().sum() * report.relative / len(known))
    of_targets = 0.5 * twice.diagonal()
    if noise.ndim == 1:
        each = [of_targets[targets.of_output(place)].sum() for place in range(len(noise))]
        of_noise = torch.stack(each)
    else:
        of_noise = torch.zeros_like(noise)
        of_noise[targets.rows, targets.outputs] = of_targets
    of_residual = torch.zeros_like(known.new_empty(residual.shape))
    of_residual[targets.rows, targets.outputs] = -alpha
    found = covariance.gradient(twice, x)
    return terms, OutputsGradient(of_residual, of_noise, *found), report
