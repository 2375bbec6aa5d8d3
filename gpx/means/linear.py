"""A linear mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.errors import ShapeError
from gpx.means.base import Mean


class Linear(Mean):
    """m(x) = weight . x + bias, both learned, with initial weight zero.

    Args:
        num_inputs: d, the number of columns of x.
        bias: initial value of the bias.
    """

    def __init__(self, num_inputs: int, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs))
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def forward(self, x: Tensor) -> Tensor:
        """Weighted sum of the columns plus bias: (n, d) -> (n,); ShapeError for a wrong d."""
        if x.ndim != 2 or x.shape[1] != self.weight.shape[0]:
            raise ShapeError(
                f"a linear mean of {self.weight.shape[0]} inputs got inputs of shape "
                f"{tuple(x.shape)}; set Linear.num_inputs to the number of columns, which are the "
                "features where a network makes these of the inputs"
            )
        return x @ self.weight + self.bias
