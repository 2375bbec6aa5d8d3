"""Mean-field Gaussian over weights, stored by blocks so that gradients are sparse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gpx.tensor_checks import check_one_of

Diagonal = Literal["free", "closed_form"]


class MeanFieldWeights(nn.Module):
    """q(w) = N(mean, diag(c)^2) for m weights in B blocks of W (QSGP-0 in the paper).

    Every table has one row per block and is read through ``embedding(..., sparse=True)``: gradients
    contain the sampled rows only, and AdaGrad or plain SGD change only those.

    The scales c are either parameters (``free``, stored as logarithms) or the optimum of the
    evidence bound given everything else (``closed_form``, QSGP paper proposition 6.1):
    c_r = sqrt(noise / (phi_r^T phi_r + noise s_r)). For ``closed_form`` the family stores the
    relative column squares rho_r = phi_r^T phi_r / (n * expected square). They are near one and
    depend little on hyperparameters, so that c follows noise and outputscale at no cost.

    Args:
        num_blocks: B.
        block_size: W; m = B W.
        diagonal: ``free`` or ``closed_form``.

    State: 2 m numbers. Source: Evans and Nair 2020 (QSGP), equation 2 and propositions 1, 2.
    """

    num_dense: int = 0
    column_ratio: Tensor

    def __init__(
        self, num_blocks: int, block_size: int, diagonal: Diagonal = "closed_form"
    ) -> None:
        super().__init__()
        check_one_of(get_args(Diagonal), diagonal=diagonal)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.diagonal = diagonal
        self.mean = nn.Parameter(torch.zeros(num_blocks, block_size))
        if diagonal == "free":
            self.log_scale = nn.Parameter(torch.zeros(num_blocks, block_size))
        else:
            self.register_buffer("column_ratio", torch.ones(num_blocks, block_size))

    def mean_of(self, blocks: Tensor, *, sparse: bool = False) -> Tensor:
        """Means (L, W) of ``blocks``; with ``sparse`` the gradient contains these rows only."""
        return embedding(blocks, self.mean, sparse=sparse)

    def log_scale_of(
        self,
        blocks: Tensor,
        *,
        column_square: Tensor,
        precision: Tensor,
        noise: Tensor,
        sparse: bool = False,
    ) -> Tensor:
        """log c (L, W) of the diagonal columns of ``blocks``.

        Args:
            blocks (L,): block numbers.
            column_square (): expected phi_r^T phi_r, n * outputscale / m for random features.
            precision (L, W): prior precisions s_r.
            noise (): noise variance.
            sparse: whether the gradient is sparse, as in ``mean_of``.

        In closed form the result has no gradient: at the optimum the derivative of the bound with
        respect to c is zero (envelope theorem).
        """
        if self.diagonal == "free":
            return embedding(blocks, self.log_scale, sparse=sparse)
        with torch.no_grad():
            ratio = embedding(blocks, self.column_ratio)
            return -0.5 * torch.log(column_square * ratio / noise + precision)

    def is_diagonal_column(self, blocks: Tensor) -> Tensor:
        """Mask (L, W) of the columns of C that are diagonal, here all."""
        return torch.ones(blocks.shape[0], self.block_size, dtype=torch.bool, device=blocks.device)

    def dense_of(self, blocks: Tensor, *, sparse: bool = False) -> Tensor:
        """Rows of the dense columns of C at ``blocks``: (L, W, K); K = 0 here."""
        return self.mean.new_zeros(blocks.shape[0], self.block_size, 0)

    def log_dense_diagonal(self) -> Tensor:
        """log c_rr of the dense columns, (K,)."""
        return self.mean.new_zeros(0)

    def covariance_blocks(self, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """Columns (b,) and root R (b, b) of each dense block R^T R of the covariance; none here."""
        return iter(())

    @torch.no_grad()
    def set_scales(self, log_scale: Tensor, column_ratio: Tensor) -> None:
        """Set the diagonal: log scales (B, W) if free, else relative column squares (B, W)."""
        if self.diagonal == "free":
            self.log_scale.copy_(log_scale)
        else:
            self.column_ratio.copy_(column_ratio)
