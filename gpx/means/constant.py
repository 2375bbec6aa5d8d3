"""A constant mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.means.base import Mean


class Constant(Mean):
    """m(x) = constant, learned.

    Args:
        constant: initial value.
    """

    def __init__(self, constant: float = 0.0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(float(constant)))

    def forward(self, x: Tensor) -> Tensor:
        """The constant at every row, (n, d) -> (n,)."""
        return self.constant.expand(x.shape[0])
