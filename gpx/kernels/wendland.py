"""Wendland's kernels, which have compact support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gpx.errors import ConfigError, ShapeError
from gpx.kernels.stationary import Stationary, safe_root


class Wendland(Stationary):
    """k = outputscale (1 - r)^j (j r + 1) for r < 1, else 0, j = floor(D / 2) + 3.

    Positive definite in up to D inputs (in three: (1 - r)^4 (4 r + 1)), and exactly zero where the
    scaled distance is one or more; products do not exploit this sparsity. Samples are once
    differentiable.

    Args:
        ard_num_dims, lengthscale, outputscale, active_dims: as in ``Stationary``; the lengthscale
            is the distance at which the covariance vanishes.
        max_inputs: D; None: 3, or ``ard_num_dims`` where that is more.

    Raises:
        ConfigError: ``max_inputs`` below one or below the number of lengthscales.
        ShapeError: when evaluated at more inputs than it is positive definite in.

    Source: Wendland 1995; Rasmussen and Williams 2006, equation 4.21 with q = 1.
    """

    def __init__(
        self,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
        active_dims: Sequence[int] | None = None,
        *,
        max_inputs: int | None = None,
    ) -> None:
        super().__init__(ard_num_dims, lengthscale, outputscale, active_dims)
        least = max(1, ard_num_dims or 0)
        self.hold_for(max(3, least) if max_inputs is None else max_inputs)
        if self.max_inputs < least:
            raise ConfigError(
                f"max_inputs={max_inputs} of a Wendland kernel must be at least {least}, the "
                "number of its inputs"
            )

    def hold_for(self, max_inputs: int) -> None:
        """Set D, and with it the power j."""
        self.max_inputs = max_inputs
        self.power = max_inputs // 2 + 3

    def coordinates(self, x: Tensor) -> Tensor:
        """As in ``Stationary``.

        Raises:
            ShapeError: more columns than it is positive definite in.
        """
        if x.shape[1] > self.max_inputs:
            raise ShapeError(
                f"Wendland kernel is positive definite in {self.max_inputs} inputs and got "
                f"{x.shape[1]}; set max_inputs={x.shape[1]}"
            )
        return super().coordinates(x)

    def of_squared_distance(self, r2: Any) -> Any:
        """(1 - r)^j (j r + 1), zero from r = 1 on."""
        r = r2.sqrt()
        return (1.0 - r).relu() ** self.power * (r * float(self.power) + 1.0)

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The profile, -j (j + 1) (1 - r)^(j - 1) / 2 and its slope, zero from r = 1 on."""
        root, coincident = safe_root(r2)
        rest, j = (1.0 - root).relu(), float(self.power)
        first = -0.5 * j * (j + 1.0) * rest ** (self.power - 1)
        second = 0.25 * j * (j + 1.0) * (j - 1.0) * rest ** (self.power - 2)
        second = (second / (root + coincident.to(root))).masked_fill(coincident, 0.0)
        return rest**self.power * (root * j + 1.0), first, second
