"""Gaussians over weights with dense columns of the covariance factor: a few of them, or all."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gpx.errors import ConfigError
from gpx.methods.weight_space.mean_field import Diagonal, MeanFieldWeights

MAX_WEIGHTS = 4096
"""Most weights of the full family, whose state is quadratic in their number."""


class ChevronWeights(MeanFieldWeights):
    """q(w) = N(mean, C C^T), C lower triangular, first K columns dense, the rest diagonal.

    QSGP-K in the paper; K = m is the full family (small m only). The dense columns are a table with
    one row per block (W K numbers), so that gradients of sampled blocks are sparse. Entries on and
    above the diagonal are masked there; the positive diagonal is stored separately, as logarithms,
    because every step uses all of it.

    Args:
        num_blocks: B.
        block_size: W; m = B W.
        num_dense: K, 1 <= K <= m.
        diagonal: of the other columns, as in MeanFieldWeights.

    State: (K + 2) m + K numbers. Source: Evans and Nair 2020 (QSGP); Challis and
    Barber 2013.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_dense: int,
        diagonal: Diagonal = "closed_form",
    ) -> None:
        super().__init__(num_blocks, block_size, diagonal)
        if not 1 <= num_dense <= num_blocks * block_size:
            raise ConfigError(
                f"num_dense={num_dense}: a chevron covariance has between 1 and "
                f"m={num_blocks * block_size} dense columns; use covariance=mean_field for none"
            )
        self.num_dense = num_dense
        self.dense = nn.Parameter(torch.zeros(num_blocks, block_size * num_dense))
        self.log_dense = nn.Parameter(torch.zeros(num_dense))

    def _rows(self, blocks: Tensor) -> Tensor:
        within = torch.arange(self.block_size, device=blocks.device)
        return blocks[:, None] * self.block_size + within  # (L, W)

    def is_diagonal_column(self, blocks: Tensor) -> Tensor:
        """Mask (L, W) of the diagonal columns K, K + 1, ..."""
        return self._rows(blocks) >= self.num_dense

    def dense_of(self, blocks: Tensor, *, sparse: bool = False) -> Tensor:
        """Rows of the K dense columns: (L, W, K), zero above the diagonal."""
        below = embedding(blocks, self.dense, sparse=sparse).view(
            blocks.shape[0], self.block_size, self.num_dense
        )
        rows = self._rows(blocks)[:, :, None]
        columns = torch.arange(self.num_dense, device=blocks.device)
        lower = torch.where(rows > columns, below, torch.zeros_like(below))
        return torch.where(rows == columns, self.log_dense.exp().expand_as(below), lower)

    def log_dense_diagonal(self) -> Tensor:
        """log c_rr of the dense columns, (K,)."""
        return self.log_dense

    @torch.no_grad()
    def set_scales(self, log_scale: Tensor, column_ratio: Tensor) -> None:
        """As MeanFieldWeights; also the diagonal of the dense columns."""
        super().set_scales(log_scale, column_ratio)
        self.log_dense.copy_(log_scale.reshape(-1)[: self.num_dense])


class FullWeights(ChevronWeights):
    """q(w) = N(mean, C C^T) with any lower-triangular C: a chevron with K = m.

    At the optimum C C^T is the exact posterior covariance and the bound is the log marginal
    likelihood of the m-function model.

    Args:
        num_blocks: B.
        block_size: W; m = B W, at most 4096.

    State: m^2 + 3 m numbers.
    Source: Evans and Nair 2020 (QSGP); Challis and Barber 2013.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        m = num_blocks * block_size
        if m > MAX_WEIGHTS:
            raise ConfigError(
                f"covariance=full keeps m^2 numbers and m={m} is above {MAX_WEIGHTS}; use fewer "
                "basis functions (num_basis=), covariance=block_diagonal, or covariance="
                "chevron with num_dense= columns"
            )
        super().__init__(num_blocks, block_size, m)

    @torch.no_grad()
    def set_root(self, root: Tensor) -> None:
        """Set C to a lower-triangular ``root`` (m, m) with positive diagonal."""
        self.dense.copy_(root.reshape(self.dense.shape))
        self.log_dense.copy_(root.diagonal().log())
