"""Sums over the data that regression on eigenfunctions needs, streamed over blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.data_pass import BLOCK_BYTES, EigenfunctionPass
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.linalg import cholesky

GRAM_TILE = 128
"""Rows per tile when only the lower triangle of F E F^T is formed (CPU)."""


def data_blocks(basis: GridEigenfunctions, modes: GridModes, x: Tensor) -> Iterator[slice]:
    """Slices of rows of x (n, d) whose features keep to BLOCK_BYTES."""
    d, m, c = modes.transforms.shape
    row = max(modes.plan.num_nodes, d * (m + c)) * x.element_size()
    step = max(1, BLOCK_BYTES.get(x.device.type, BLOCK_BYTES["cpu"]) // row)
    for start in range(0, x.shape[0], step):
        yield slice(start, min(start + step, x.shape[0]))


@dataclass(frozen=True)
class FeatureSums:
    """Sums over n points of features F (p, n) with weights E = D^{-1}; float64.

    Attributes:
        gram (p, p): F E F^T.
        projected (p,): F E r.
        squared_residual (): r^T E r.
        log_noise (): log det D.
        num_data: n.
    """

    gram: Tensor
    projected: Tensor
    squared_residual: Tensor
    log_noise: Tensor
    num_data: int


@torch.no_grad()
def feature_sums(
    basis: GridEigenfunctions,
    modes: GridModes,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    correction: Tensor | None = None,
) -> FeatureSums:
    """One pass over the data; features are formed and dropped block by block.

    Args:
        basis, modes: eigenfunctions of the kernel with outputscale one.
        x (n, d), residual (n,): inputs and y - m(x).
        noise (): noise variance.
        correction: the outputscale where D_i = noise + outputscale (1 - |f_i|^2), the variance that
            the eigenfunctions miss at point i; None where D = noise I.

    Cost: n p^2 / 2 + O(n (p + d m c)) multiply-adds, memory O(p^2 + block).
    """
    p = modes.plan.index.shape[0]
    total = torch.zeros(p, p, dtype=torch.float64, device=x.device)
    partial = total if x.dtype == torch.float64 else torch.zeros_like(total, dtype=x.dtype)
    projected = torch.zeros(p, dtype=torch.float64, device=x.device)
    squared, logs = projected.new_zeros(()), projected.new_zeros(())
    s = noise.to(x.dtype)
    functions = EigenfunctionPass(basis, modes, x)
    for rows in functions.blocks():
        block, r = functions(rows), residual[rows]
        d = s if correction is None else point_noise(block, s, correction.to(x.dtype))
        scaled = r / d
        projected += (block @ scaled).double()
        squared += torch.dot(r, scaled).double()
        if correction is not None:
            block = block * d.rsqrt()
            logs += d.double().log().sum()
        add_gram(partial, block)
        if partial is not total:
            total += partial
            partial.zero_()
    gram = total.tril() + total.tril(-1).mT
    if correction is None:
        gram /= noise.double()
        logs = x.shape[0] * noise.double().log()
    return FeatureSums(gram, projected, squared, logs, x.shape[0])


def point_noise(block: Tensor, noise: Tensor, outputscale: Tensor) -> Tensor:
    """noise + outputscale (1 - |f_i|^2) for features (p, b): (b,), never below the noise."""
    return noise + outputscale * (1.0 - block.square().sum(0)).clamp(min=0.0)


def add_gram(total: Tensor, block: Tensor) -> None:
    """Add the lower triangle of block block^T; what lands above the diagonal is ignored."""
    p = total.shape[0]
    tile = GRAM_TILE if block.is_cpu else p
    for start in range(0, p, tile):
        stop = min(start + tile, p)
        total[start:stop, :stop].addmm_(block[start:stop], block[:stop].mT)


class WeightPosterior:
    """q(v) = N(mean, B^{-1}) of weights v ~ N(0, I) under features diag(scale) F.

    B = I + diag(scale) F E F^T diag(scale), at least one on every eigenvalue.

    Args:
        sums: over the data.
        scale (p,): standard deviation of the prior of each feature's weight.

    Attributes:
        factor (p, p): lower Cholesky factor of B.
        mean (p,): B^{-1} diag(scale) F E r.
        projected (p,): the sum in these features.

    Cost: p^3 / 3 multiply-adds.
    Raises: NotPositiveDefinite where the sums are not finite.
    """

    def __init__(self, sums: FeatureSums, scale: Tensor) -> None:
        inner = sums.gram * scale * scale.unsqueeze(1)
        self.projected = sums.projected * scale
        inner.diagonal().add_(1.0)
        # at least one on every eigenvalue: a failure can only be NaN, which the error then names
        self.factor, _ = cholesky(inner, name="I + Phi^T Phi / noise", ladder=(0.0,))
        self.mean = torch.cholesky_solve(self.projected.unsqueeze(1), self.factor).squeeze(1)

    def explained(self) -> Tensor:
        """r^T E Phi B^{-1} Phi^T E r, 0-d."""
        return torch.dot(self.projected, self.mean)

    def inverse(self) -> Tensor:
        """B^{-1} (p, p)."""
        return torch.cholesky_inverse(self.factor)
