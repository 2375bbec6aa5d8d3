"""Residual covariance plus noise, D, of the training points under an effective prior.

The covariance of the targets is Q_xx + D with D = s I + R, where R is zero, the diagonal, or the
diagonal blocks of K_xx - Q_xx. It is handled by blocks of rows of A^T (n, M) (``BlockStore``),
between which D has no entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.nystrom import BlockStore, GramSum, NystromSums, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.linalg import cholesky, inverse_of_factor
from gpx.methods.sparse.block_batches import Batches, BlockBatch

Structure = Literal["none", "diagonal", "blocks"]


class ResidualNoise(ABC):
    """D (b, b) of one block of rows: solves and its part of the gradient.

    Attributes:
        trace (): tr R, float64.
        clamped (b,): rows where R was negative by rounding and is set to the constant zero.
    """

    trace: Tensor
    clamped: Tensor

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
        kernel_gradient: KernelGradient,
        aca: GramSum,
    ) -> tuple[Tensor, Tensor]:
        """Contribution of these rows to the gradient of the evidence, with S = Q_xx + D.

        G are the entries of S^{-1} - p p^T where R is not zero, and C = D^{-1} - G.

        Args:
            rows, block (b, M): these rows, and their part of A^T.
            complement (M, M): I - B^{-1}.
            weights (b,): p = S^{-1} r.
            kernel_gradient: -G / 2, the gradient with respect to the entries of K in R, is added.
            aca: A C A^T is added.

        Returns:
            D^{-1} A^T (I - B^{-1}) - C A^T (b, M), and the diagonal (b,) of S^{-1} - p p^T in
            float64.
        """


class DiagonalNoise(ResidualNoise):
    """D_nn = s + max(0, k(x_n, x_n) - [Q_xx]_nn).

    Args:
        store, rows, block (b, M): the rows of ``store.x`` and their part of A^T.
        noise: s, () or (b,).
        batch: taken as by the other structures; D of a row needs nothing of the rest.
    """

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
        """As in ``ResidualNoise``."""
        return right * self.values.rsqrt().unsqueeze(1)

    def solve(self, right: Tensor) -> Tensor:
        """As in ``ResidualNoise``."""
        return right / self.values.unsqueeze(1)

    def logdet(self) -> Tensor:
        """As in ``ResidualNoise``."""
        return self.values.double().log().sum()

    def gradient(
        self,
        rows: slice,
        block: Tensor,
        complement: Tensor,
        weights: Tensor,
        kernel_gradient: KernelGradient,
        aca: GramSum,
    ) -> tuple[Tensor, Tensor]:
        """C_nn = a_n^T B^{-1} a_n / D_nn^2 + p_n^2, or 1 / D_nn where clamped. Cost: 1.5 b M^2."""
        found = block @ complement
        work = found * block
        scale = self.values.reciprocal()
        leverage = (self.explained - work.sum(1)).clamp_(min=0.0)
        c = leverage * scale.square() + weights.square()
        own = (scale - c).double()  # also of clamped points, for the gradient by the noise
        c = torch.where(self.clamped, scale, c)
        kernel_gradient.add_diagonal(rows, (0.5 * (c - scale)).to(kernel_gradient.x.dtype))
        torch.mul(block, c.sqrt().unsqueeze(1), out=work)
        aca.add(work, work)
        found *= scale.unsqueeze(1)
        return found.addcmul_(block, c.unsqueeze(1), value=-1.0), own


class BlockNoise(ResidualNoise):
    """D = s I + K_bb - Q_bb of a block b of rows, or of a padded batch of blocks; no jitter.

    Args:
        store, rows, block (b, M): the rows of ``store.x`` and their part of A^T.
        noise (): s.
        batch: the blocks (g, p, p), padded with the identity; None: the rows are one block.
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

    def _unpadded(self, values: Tensor) -> Tensor:
        return values if self.batch is None else self.batch.unpadded(values)

    def whiten(self, right: Tensor) -> Tensor:
        """As in ``ResidualNoise``."""
        right = self._padded(right)
        return self._unpadded(torch.linalg.solve_triangular(self.factor, right, upper=False))

    def solve(self, right: Tensor) -> Tensor:
        """As in ``ResidualNoise``."""
        if self.batch is None:
            return torch.cholesky_solve(right, self.factor)
        half = torch.linalg.solve_triangular(self.factor, self._padded(right), upper=False)
        return self._unpadded(torch.linalg.solve_triangular(self.factor.mT, half, upper=True))

    def logdet(self) -> Tensor:
        """As in ``ResidualNoise``."""
        return 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).double().log().sum()

    def gradient(
        self,
        rows: slice,
        block: Tensor,
        complement: Tensor,
        weights: Tensor,
        kernel_gradient: KernelGradient,
        aca: GramSum,
    ) -> tuple[Tensor, Tensor]:
        """C = D^{-1} A^T B^{-1} A D^{-1} + p p^T. Cost: 1.5 b M^2 + 3 b^2 M + b^3."""
        low, weights = self._padded(block), self._padded(weights.unsqueeze(1))
        inverse = inverse_of_factor(self.factor)
        scaled = inverse @ low
        found = scaled @ complement
        c = (scaled - found) @ scaled.mT
        c.addcmul_(weights, weights.mT)
        inverse -= c
        diagonal = inverse.diagonal(dim1=-2, dim2=-1)
        if self.batch is None:
            kernel_gradient.add_data(rows, rows, (-0.5 * inverse).to(kernel_gradient.x.dtype))
        else:
            diagonal.copy_(self.batch.zero_padding(diagonal))
            weight = (-0.5 * inverse).to(kernel_gradient.x.dtype)
            kernel_gradient.add_groups(rows, self.batch.covariances, weight)
        product = c @ low
        aca.add(low.flatten(0, -2), product.flatten(0, -2))
        found -= product
        return self._unpadded(found), self._unpadded(diagonal).double()


def _factors(matrix: Tensor, batch: BlockBatch | None) -> Tensor:
    """The Cholesky factors; the error names a block that has none."""

    def factor(part: Tensor) -> Tensor:
        found, _ = cholesky(
            part,
            name=f"the residual covariance plus noise of a block of {part.shape[-1]} points",
            ladder=(0.0,),
        )
        return found

    try:
        return factor(matrix)
    except NotPositiveDefinite:
        for own, size in zip(matrix, () if batch is None else batch.sizes, strict=False):
            factor(own[:size, :size])
        raise


RESIDUAL_NOISE: dict[str, type[DiagonalNoise] | type[BlockNoise]] = {
    "diagonal": DiagonalNoise,
    "blocks": BlockNoise,
}
"""Class of D by structure ("none" needs no class: D = s I)."""


class EffectiveSums(NamedTuple):
    """Sums over the data of rows whitened by D, in float64.

    Attributes:
        sums: of D^{-1/2} A^T and D^{-1/2} r in place of A^T and r, times the root of ``scale``.
        scale (): s if D = s I, else one.
        logdet (): log det D.
        parts: D of every block of rows, if ``keep_parts``.
    """

    sums: NystromSums
    scale: Tensor
    logdet: Tensor
    parts: list[ResidualNoise]

    def inner(self) -> InnerFactor:
        """B = I + A D^{-1} A^T, and the posterior mean B^{-1} A D^{-1} r of L^{-1} u."""
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
        store: blocks of A^T, with the same bounds as those of D.
        residual (n,): r = y - m(x).
        noise () or (n,): s, float64, of all rows or of each. For s (n,) with ``structure="none"``,
            store and residual are scaled by 1 / sqrt(s).
        structure: of R.
        batches: the blocks of D in each block of ``store``.
        keep_parts: whether to return D: n numbers for the diagonal, b^2 for each block of b rows.

    Raises:
        NotPositiveDefinite: a block of D.
    """
    x, m = store.x, store.whitener.z.shape[0]
    if structure == "none":
        if noise.ndim:
            sums = nystrom_sums(store, residual)
            return EffectiveSums(sums, noise.new_ones(()), noise.log().sum(), [])
        return EffectiveSums(nystrom_sums(store, residual), noise, len(x) * noise.log(), [])
    projected = torch.zeros(m, dtype=torch.float64, device=x.device)
    gram = GramSum(projected.new_zeros(m, m), store.dtype)
    residual = residual.to(store.dtype)
    trace_error, squared, logdet = (projected.new_zeros(()) for _ in range(3))
    clamped = torch.empty(len(x), dtype=torch.bool, device=x.device)
    parts: list[ResidualNoise] = []
    for number, (rows, block) in enumerate(store):
        batch = batches[number][1] if batches else None
        own_noise = noise[rows] if noise.ndim else noise
        part = RESIDUAL_NOISE[structure](store, rows, block, own_noise, batch)
        if keep_parts:
            parts.append(part)
        white, target = part.whiten(block), part.whiten(residual[rows].unsqueeze(1)).squeeze(1)
        gram.add(white, white)
        projected += white.mT @ target
        squared += target.double().square().sum()
        logdet += part.logdet()
        trace_error += part.trace
        clamped[rows] = part.clamped
    sums = NystromSums(gram.matrix(), projected, trace_error, squared, clamped)
    return EffectiveSums(sums, projected.new_ones(()), logdet, parts)
