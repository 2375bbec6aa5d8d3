"""Random features of arc-cosine kernels: units of one hidden layer with random weights."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis, check_inputs, largest_divisor
from gpx.bases.random_directions import ROWS, Directions
from gpx.errors import ConfigError, class_name
from gpx.kernels.arc_cosine import ArcCosine
from gpx.kernels.own_covariance import computes_as
from gpx.tensor_checks import check_at_least, check_one_of


class ArcCosineFeatures(Basis):
    """phi_r(x) = sqrt(2 outputscale / m) h(w_r . x / lengthscale), h(t) = t^n for t > 0, else 0.

    The mean of phi(x)^T phi(z) over random w is the arc-cosine kernel of order n for every m. With
    order 1 the units are rectified linear. Nothing of size m is stored: weights of unit r come from
    row r of a counter-based generator. Features are differentiable in lengthscales and outputscale;
    those of order 0 are steps, whose derivative in the lengthscales is zero.

    Args:
        kernel: ``ArcCosine`` on all columns.
        num_basis: m.
        num_inputs: d.
        seed: of the weights, 0 <= seed < 2^64.
        directions: of the weights: ``independent``; ``orthogonal`` in groups of d, or
            ``structured`` by Hadamard matrices, at a smaller error; ``fastfood``, at a larger one.
        block_columns: upper limit of columns per block (the largest divisor of m below it).

    Raises:
        ConfigError: another kernel, or options out of range.

    Cost: O(n len(columns) d) time, O((n + d) len(columns)) memory; for the weights see
    ``gpx.bases.random_directions``.
    Source: Cho and Saul 2009; Cutajar et al., "Random feature expansions for deep Gaussian
    processes", 2017.
    """

    kernel: ArcCosine

    def __init__(
        self,
        kernel: nn.Module,
        num_basis: int,
        num_inputs: int,
        seed: int = 0,
        directions: Directions = "independent",
        block_columns: int = 500,
    ) -> None:
        super().__init__()
        plain = computes_as(kernel, ArcCosine)
        if not isinstance(kernel, ArcCosine) or not plain or kernel.active_dims is not None:
            raise ConfigError(
                f"arc-cosine features are those of an ArcCosine kernel of all inputs, got "
                f"{class_name(kernel)}; give it an ArcCosine kernel with active_dims=None"
            )
        check_at_least(1, num_basis=num_basis, block_columns=block_columns)
        check_one_of(get_args(Directions), directions=directions)
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed} of the weights must be in [0, 2^64)")
        self.kernel = kernel
        self.num_basis, self.num_inputs = num_basis, num_inputs
        self.seed = seed
        self.directions: Directions = directions
        self.block_size = largest_divisor(num_basis, block_columns)

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """phi(x) at any columns; (n, len(columns)) or (n, m)."""
        check_inputs(x, "ArcCosineFeatures")
        if columns is None:
            columns = torch.arange(self.num_basis, device=x.device)
        weights = ROWS[self.directions](self.seed, columns, x.shape[1]).to(x.dtype)
        projected = self.kernel.scaled(x) @ weights.mT
        order = self.kernel.order
        active = projected.clamp_min(0.0).pow(order) if order else (projected > 0.0).to(x.dtype)
        scale = (2.0 / self.num_basis * self.kernel.outputscale).sqrt()
        return active * scale.to(x.dtype)

    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """Ones: the features carry the scale of the prior."""
        count = self.num_basis if columns is None else columns.shape[0]
        return torch.ones_like(self.kernel.outputscale.detach()).expand(count)

    def mean_column_square(self) -> Tensor:
        """k(x, x) / m at an input of ones, the size of standardised ones: 0-d."""
        assert self.num_inputs is not None
        ones = self.kernel.lengthscale.new_ones(1, self.num_inputs)
        return self.kernel.diagonal(ones)[0] / self.num_basis
