"""Derivatives of kernels of mapped inputs, by the chain rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.kernels.derivatives.base import Input, KernelDerivatives

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel


class Moved:
    """Rows under a map, and how their images move with single inputs.

    Args:
        warp: (n, d) -> (n, q), row by row.
        x (..., d): the rows.

    Attributes:
        at (..., q): their images.
    """

    def __init__(self, warp: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.warp, self.x = warp, x
        self.at = self._shaped(warp(self._flat()))
        self._by: dict[int, Tensor] = {}

    def by(self, i: int | None) -> Tensor:
        """d images / d x_i, (..., q)."""
        assert i is not None
        if i not in self._by:
            flat = self._flat()
            direction = torch.zeros_like(flat)
            direction[:, i] = 1.0
            moved: tuple[Tensor, ...] = torch.func.jvp(self.warp, (flat,), (direction,))
            self._by[i] = self._shaped(moved[1])
        return self._by[i]

    def steps(self, i: Input) -> list[tuple[Input, Tensor | None]]:
        """Every output of the map with its derivative by x_i (...); for None one pair of None."""
        if i is None:
            return [(None, None)]
        return list(enumerate(self.by(i).unbind(-1)))

    def _flat(self) -> Tensor:
        return self.x.reshape(-1, self.x.shape[-1])

    def _shaped(self, found: Tensor) -> Tensor:
        return found.reshape(*self.x.shape[:-1], found.shape[-1])


class OfWarp(KernelDerivatives):
    """Of k_1(g(a), g(b)), by the chain rule.

    Args:
        kernel: k_1.
        warp: g, (n, d) -> (n, q).
        a (..., d), b (..., d): inputs of g.
    """

    def __init__(
        self, kernel: Kernel, warp: Callable[[Tensor], Tensor], a: Tensor, b: Tensor
    ) -> None:
        super().__init__(a, b)
        self.left, self.right = Moved(warp, a), Moved(warp, b)
        self.inner = kernel.derivatives(self.left.at, self.right.at)

    def part(self, i: Input, j: Input) -> Tensor | None:
        """Sums over the outputs r and s of g of dg_r/da_i dg_s/db_j times its."""
        total: Tensor | None = None
        for r, by_left in self.left.steps(i):
            for s, by_right in self.right.steps(j):
                found = self.inner.of(r, s)
                for factor in (by_left, by_right):
                    found = found if found is None or factor is None else found * factor
                if found is not None:
                    total = found if total is None else total + found
        return total


class OfFeature(KernelDerivatives):
    """Of k = w(a) w(b) for one of several functions w of one input.

    Args:
        left, right: the functions of the rows a and b.
        place: of w among them.
        axis: the input.
    """

    def __init__(self, left: Moved, right: Moved, place: int, axis: int) -> None:
        super().__init__(left.x, right.x)
        self.left, self.right, self.place, self.axis = left, right, place, axis

    def part(self, i: Input, j: Input) -> Tensor | None:
        """Products of the function, or its slope, of either row."""
        if any(column not in (None, self.axis) for column in (i, j)):
            return None
        own, other = (
            (rows.at if column is None else rows.by(column))[..., self.place]
            for rows, column in ((self.left, i), (self.right, j))
        )
        return own * other
