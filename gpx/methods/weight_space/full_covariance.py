"""Full Gaussian over weights: every column of the covariance factor is dense; small m only."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.weight_space.chevron import ChevronWeights

MAX_WEIGHTS = 4096


class FullWeights(ChevronWeights):
    """q(w) = N(mean, C C^T) with any lower-triangular C: the reference family.

    At its optimum C C^T is the exact posterior covariance and the bound is the log marginal
    likelihood of the m-function model. It is a chevron with K = m, so everything that estimates a
    chevron estimates it, at O(m) dense columns per step.

    Args:
        num_blocks: B.
        block_size: W; m = B W, at most 4096.

    State: m^2 + 3 m numbers, of which m (m + 1) / 2 + m are free.
    Source: Evans and Nair 2020 (QSGP); Challis and Barber 2013.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        m = num_blocks * block_size
        if m > MAX_WEIGHTS:
            raise ConfigError(
                f"covariance=full keeps m^2 numbers and m={m} is above {MAX_WEIGHTS}; use fewer "
                "basis functions (approx.num_basis), covariance=block_diagonal, or covariance="
                "chevron with approx.num_dense columns"
            )
        super().__init__(num_blocks, block_size, m)

    @torch.no_grad()
    def set_root(self, root: Tensor) -> None:
        """Set C to a lower-triangular ``root`` (m, m) with positive diagonal."""
        self.dense.copy_(root.reshape(self.dense.shape))
        self.log_dense.copy_(root.diagonal().log())
