"""What an effective prior keeps of K - Q among training points, with the noise: D, block by block.

The covariance of the targets is Q_xx + D with D = s I + R and R zero, the diagonal or diagonal
blocks of K_xx - Q_xx. Rows of A^T (n, M) come as in ``gpx.inference.nystrom``; every block of rows
that the stream hands out has its own part of D, which no other block shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.nystrom import BlockStore, NystromSums, add_gram, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.linalg import cholesky
from gpx.methods.sparse.block_batches import Batches, BlockBatch

Structure = Literal["none", "diagonal", "blocks"]


class ResidualNoise(ABC):
    """D (b, b) of the rows of one block, with its inverse and its place in the gradient.

    Attributes:
        trace (): tr R, float64.
        clamped (b,): where R was negative by rounding and counts as the constant zero.
    """

    trace: Tensor
    clamped: Tensor

    @abstractmethod
    def __init__(
        self,
        store: BlockStore,
        rows: slice,
        block: Tensor,
        noise: Tensor,
        batch: BlockBatch | None = None,
    ) -> None:
        """Of the rows of ``store.x`` with their block (b, M) of A^T and the noise () or (b,).

        Where D has several blocks, ``batch`` says which rows are whose.
        """

    @abstractmethod
    def whiten(self, right: Tensor) -> Tensor:
        """C^{-1} right (b, c), D = C C^T; a new tensor."""

    @abstractmethod
    def solve(self, right: Tensor) -> Tensor:
        """D^{-1} right (b, c); a new tensor."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log det D, float64."""

    @abstractmethod
    def gradient(
        self,
        rows: slice,
        block: Tensor,
        complement: Tensor,
        weights: Tensor,
        gathered: KernelGradient,
        curved: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Contribution of these rows to the gradient of the evidence, S = Q_xx + D.

        With G the part of S^{-1} - p p^T where D follows K - Q, and C = D^{-1} - G.

        Args:
            rows, block (b, M): these rows, and theirs of A^T.
            complement (M, M): I - B^{-1}.
            weights (b,): p = S^{-1} r.
            gathered: takes -G / 2, the derivative with respect to the entries of K in R.
            curved (M, M): takes the lower triangle of A C A^T; what is above it is arbitrary.

        Returns:
            D^{-1} A^T (I - B^{-1}) - C A^T (b, M), and the diagonal (b,) of S^{-1} - p p^T in
            float64.
        """


class DiagonalNoise(ResidualNoise):
    """D_nn = s + max(0, k(x_n, x_n) - [Q_xx]_nn)."""

    def __init__(
        self,
        store: BlockStore,
        rows: slice,
        block: Tensor,
        noise: Tensor,
        batch: BlockBatch | None = None,
    ) -> None:
        gap = store.whitener.kernel.diagonal(store.x[rows]).detach()
        self.explained = torch.linalg.vecdot(block, block)
        gap = gap.to(block.dtype) - self.explained
        self.clamped = gap < 0.0
        gap.clamp_(min=0.0)
        self.trace = gap.double().sum()
        self.values = gap + noise.to(gap.dtype)

    def whiten(self, right: Tensor) -> Tensor:
        """Rows divided by the root of D_nn."""
        return right * self.values.rsqrt().unsqueeze(1)

    def solve(self, right: Tensor) -> Tensor:
        """Rows divided by D_nn."""
        return right / self.values.unsqueeze(1)

    def logdet(self) -> Tensor:
        """The sum of logarithms."""
        return self.values.double().log().sum()

    def gradient(
        self,
        rows: slice,
        block: Tensor,
        complement: Tensor,
        weights: Tensor,
        gathered: KernelGradient,
        curved: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """C_nn = a_n^T B^{-1} a_n / D_nn^2 + p_n^2, or 1 / D_nn where clamped. Cost: 1.5 b M^2."""
        found = block @ complement
        work = found * block
        scale = self.values.reciprocal()
        leverage = (self.explained - work.sum(1)).clamp_(min=0.0)
        taken = leverage * scale.square() + weights.square()
        own = (scale - taken).double()  # clamped points keep their noise
        taken = torch.where(self.clamped, scale, taken)
        gathered.add_diagonal(rows, (0.5 * (taken - scale)).to(gathered.x.dtype))
        torch.mul(block, taken.sqrt().unsqueeze(1), out=work)
        add_gram(curved, work, work)
        found *= scale.unsqueeze(1)
        return found.addcmul_(block, taken.unsqueeze(1), value=-1.0), own


class BlockNoise(ResidualNoise):
    """D = s I + K_bb - Q_bb of all pairs of rows of a block b; no jitter.

    Several blocks are one batch of matrices (g, p, p), padded with the identity.
    """

    def __init__(
        self,
        store: BlockStore,
        rows: slice,
        block: Tensor,
        noise: Tensor,
        batch: BlockBatch | None = None,
    ) -> None:
        self.batch, x = batch, store.x[rows]
        kernel = store.whitener.kernel
        own = kernel.evaluate(x, x) if batch is None else batch.covariances(kernel, x)
        low = self._padded(block)
        product = torch.addmm if batch is None else torch.baddbmm
        matrix = product(own.detach().to(block.dtype), low, low.mT, alpha=-1.0)
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        self.clamped = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        noise = noise.to(matrix.dtype)
        if batch is None:
            self.trace = diagonal.double().sum()
            diagonal.add_(noise)
        else:
            self.trace = batch.zero_padding(diagonal).double().sum()
            batch.covariance(matrix, noise.expand(len(matrix)), matrix)
        self.factor = _factors(matrix, batch)

    def _padded(self, values: Tensor) -> Tensor:
        return values if self.batch is None else self.batch.padded(values)

    def _gathered(self, values: Tensor) -> Tensor:
        return values if self.batch is None else self.batch.gathered(values)

    def whiten(self, right: Tensor) -> Tensor:
        """By one triangular solve."""
        right = self._padded(right)
        return self._gathered(torch.linalg.solve_triangular(self.factor, right, upper=False))

    def solve(self, right: Tensor) -> Tensor:
        """By two."""
        if self.batch is None:
            return torch.cholesky_solve(right, self.factor)
        half = torch.linalg.solve_triangular(self.factor, self._padded(right), upper=False)
        return self._gathered(torch.linalg.solve_triangular(self.factor.mT, half, upper=True))

    def _inverse(self) -> Tensor:
        """D^{-1}; of several blocks on a GPU by solves: one call for all of them."""
        if self.batch is None or self.factor.is_cpu:
            return torch.cholesky_inverse(self.factor)
        eye = torch.eye(self.factor.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        root = torch.linalg.solve_triangular(self.factor, eye.expand_as(self.factor), upper=False)
        return root.mT @ root

    def logdet(self) -> Tensor:
        """Of the Cholesky factor."""
        return 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).double().log().sum()

    def gradient(
        self,
        rows: slice,
        block: Tensor,
        complement: Tensor,
        weights: Tensor,
        gathered: KernelGradient,
        curved: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """C = D^{-1} A^T B^{-1} A D^{-1} + p p^T. Cost: 1.5 b M^2 + 3 b^2 M + b^3."""
        low, weights = self._padded(block), self._padded(weights.unsqueeze(1))
        inverse = self._inverse()
        scaled = inverse @ low
        found = scaled @ complement
        taken = (scaled - found) @ scaled.mT
        taken.addcmul_(weights, weights.mT)
        inverse -= taken
        diagonal = inverse.diagonal(dim1=-2, dim2=-1)
        if self.batch is None:
            gathered.add_data(rows, rows, (-0.5 * inverse).to(gathered.x.dtype))
        else:
            diagonal.copy_(self.batch.zero_padding(diagonal))
            weight = (-0.5 * inverse).to(gathered.x.dtype)
            gathered.add_groups(rows, self.batch.covariances, weight)
        bent = taken @ low
        add_gram(curved, low.flatten(0, -2), bent.flatten(0, -2))
        found -= bent
        return self._gathered(found), self._gathered(diagonal).double()


def _factors(matrix: Tensor, batch: BlockBatch | None) -> Tensor:
    """The Cholesky factors; a block that has none is named."""

    def factor(part: Tensor) -> Tensor:
        found, _ = cholesky(
            part,
            name=f"the residual covariance plus noise of a block of {part.shape[-1]} points",
            ladder=(0.0,),
            hint="a larger noise variance",
        )
        return found

    try:
        return factor(matrix)
    except NotPositiveDefinite:
        for own, size in zip(matrix, () if batch is None else batch.sizes, strict=False):
            factor(own[:size, :size])
        raise


NOISE: dict[str, type[DiagonalNoise] | type[BlockNoise]] = {
    "diagonal": DiagonalNoise,
    "blocks": BlockNoise,
}
"""D of a block of rows, by structure; "none" is the noise alone."""


class EffectiveSums(NamedTuple):
    """Sums over the data of rows whitened by D, in float64.

    Attributes:
        sums: with D^{-1/2} A^T and D^{-1/2} r in the place of A^T and r, times the root of scale.
        scale (): s where D = s I, else one.
        logdet (): log det D.
        parts: D of every block of rows, where they were to be kept.
    """

    sums: NystromSums
    scale: Tensor
    logdet: Tensor
    parts: list[ResidualNoise]

    def inner(self) -> InnerFactor:
        """B = I + A D^{-1} A^T with the posterior mean B^{-1} A D^{-1} r of L^{-1} u."""
        return InnerFactor(self.sums, self.scale)


def effective_sums(
    store: BlockStore,
    residual: Tensor,
    noise: Tensor,
    structure: Structure,
    *,
    batches: Batches = (),
    keep_parts: bool = False,
) -> EffectiveSums:
    """One pass over the data: n M^2 multiply-adds; blocks of b rows add n b M + n b^2 / 3.

    Args:
        store: blocks of A^T, cut where those of D are; filled on the way.
        residual (n,): r = y - m(x).
        noise () or (n,): s, float64, of all rows or of each; without residual the store then has
            1 / sqrt(s) for its scale, and so has the residual.
        structure: of D.
        batches: of the blocks of D, where ``store`` hands out their rows together.
        keep_parts: whether the result holds every part of D: n numbers for the diagonal, the
            square of its size for each block.

    Raises:
        NotPositiveDefinite: a block of D.
    """
    x, m = store.x, store.whitener.z.shape[0]
    if structure == "none":
        if noise.ndim:
            sums = nystrom_sums(store, residual)
            return EffectiveSums(sums, noise.new_ones(()), noise.log().sum(), [])
        return EffectiveSums(nystrom_sums(store, residual), noise, len(x) * noise.log(), [])
    total = torch.zeros(m, m, dtype=torch.float64, device=x.device)
    partial = total if store.dtype == total.dtype else torch.zeros_like(total, dtype=store.dtype)
    residual = residual.to(store.dtype)
    projected = total.new_zeros(m)
    trace_error, squared, logdet = total.new_zeros(()), total.new_zeros(()), total.new_zeros(())
    clamped = torch.empty(len(x), dtype=torch.bool, device=x.device)
    parts: list[ResidualNoise] = []
    for number, (rows, block) in enumerate(store):
        batch = batches[number][1] if batches else None
        own_noise = noise[rows] if noise.ndim else noise
        part = NOISE[structure](store, rows, block, own_noise, batch)
        if keep_parts:
            parts.append(part)
        white, target = part.whiten(block), part.whiten(residual[rows].unsqueeze(1)).squeeze(1)
        add_gram(partial, white, white)
        if partial is not total:
            total += partial
            partial.zero_()
        projected += white.mT @ target
        squared += target.double().square().sum()
        logdet += part.logdet()
        trace_error += part.trace
        clamped[rows] = part.clamped
    gram = total.tril() + total.tril(-1).mT
    sums = NystromSums(gram, projected, trace_error, squared, clamped)
    return EffectiveSums(sums, total.new_ones(()), logdet, parts)
