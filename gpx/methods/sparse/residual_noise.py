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

from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.nystrom import BlockStore, NystromSums, add_gram, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.linalg import cholesky

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
    def __init__(self, store: BlockStore, rows: slice, block: Tensor, noise: Tensor) -> None:
        """Of the rows of ``store.x`` with their block (b, M) of A^T and the noise () or (b,)."""

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
        """What these rows say to the gradient of the evidence, S = Q_xx + D.

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

    def __init__(self, store: BlockStore, rows: slice, block: Tensor, noise: Tensor) -> None:
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
    """D = s I + K_bb - Q_bb of all pairs of rows of the block; no jitter."""

    def __init__(self, store: BlockStore, rows: slice, block: Tensor, noise: Tensor) -> None:
        x = store.x[rows]
        matrix = store.whitener.kernel.evaluate(x, x).detach().to(block.dtype)
        matrix = torch.addmm(matrix, block, block.mT, alpha=-1.0)
        self.trace = matrix.diagonal().double().sum()
        self.clamped = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        matrix.diagonal().add_(noise.to(matrix.dtype))
        self.factor, _ = cholesky(
            matrix,
            name=f"the residual covariance plus noise of a block of {len(x)} points",
            ladder=(0.0,),
            hint="a larger noise variance",
        )

    def whiten(self, right: Tensor) -> Tensor:
        """By one triangular solve."""
        return torch.linalg.solve_triangular(self.factor, right, upper=False)

    def solve(self, right: Tensor) -> Tensor:
        """By two."""
        return torch.cholesky_solve(right, self.factor)

    def logdet(self) -> Tensor:
        """Of the Cholesky factor."""
        return 2.0 * self.factor.diagonal().double().log().sum()

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
        inverse = torch.cholesky_inverse(self.factor)
        scaled = inverse @ block
        found = scaled @ complement
        taken = torch.addr((scaled - found) @ scaled.mT, weights, weights)
        inverse -= taken
        gathered.add_data(rows, rows, (-0.5 * inverse).to(gathered.x.dtype))
        bent = taken @ block
        add_gram(curved, block, bent)
        found -= bent
        return found, inverse.diagonal().double()


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
    keep_parts: bool = False,
) -> EffectiveSums:
    """One pass over the data: n M^2 multiply-adds; blocks of b rows add n b M + n b^2 / 3.

    Args:
        store: blocks of A^T, cut where those of D are; filled on the way.
        residual (n,): r = y - m(x).
        noise () or (n,): s, float64, of all rows or of each; without residual the store then has
            1 / sqrt(s) for its scale, and so has the residual.
        structure: of D.
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
    for rows, block in store:
        part = NOISE[structure](store, rows, block, noise[rows] if noise.ndim else noise)
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
