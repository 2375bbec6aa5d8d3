"""Derivatives of sums, products and multiples of kernels, and of kernels of some columns."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from torch import Tensor

from gpx.kernels.derivatives.base import Input, KernelDerivatives, no_derivatives

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel


class OfSum(KernelDerivatives):
    """Of k_1 + k_2 + ..."""

    def __init__(self, parts: Sequence[KernelDerivatives]) -> None:
        super().__init__(parts[0].a, parts[0].b)
        self.parts = parts

    def part(self, i: Input, j: Input) -> Tensor | None:
        """The sum of theirs."""
        found = [p for p in (part.of(i, j) for part in self.parts) if p is not None]
        return reduce(operator.add, found) if found else None


class OfProduct(KernelDerivatives):
    """Of k_1 k_2, by the product rule."""

    def __init__(self, left: KernelDerivatives, right: KernelDerivatives) -> None:
        super().__init__(left.a, left.b)
        self.left, self.right = left, right

    def part(self, i: Input, j: Input) -> Tensor | None:
        """The sum over all ways to differentiate either factor."""
        ways = {(i, j, None, None), (None, None, i, j), (i, None, None, j), (None, j, i, None)}
        total: Tensor | None = None
        for own_i, own_j, other_i, other_j in sorted(ways, key=str):
            left = self.left.of(own_i, own_j)
            right = None if left is None else self.right.of(other_i, other_j)
            if left is not None and right is not None:
                total = left * right if total is None else total + left * right
        return total


class Scaled(KernelDerivatives):
    """Of a multiple of k.

    Args:
        inner: of k.
        scale (): the multiple.
    """

    def __init__(self, inner: KernelDerivatives, scale: Tensor) -> None:
        super().__init__(inner.a, inner.b)
        self.inner, self.scale = inner, scale

    def part(self, i: Input, j: Input) -> Tensor | None:
        """The multiple of its."""
        found = self.inner.of(i, j)
        return None if found is None else self.scale * found


class InColumns(KernelDerivatives):
    """Of a kernel of some columns only; derivatives by the others are zero.

    Args:
        a (..., d), b (..., d): inputs, all columns.
        inner: of the kernel of the columns.
        columns: of x, in the kernel's order.
    """

    def __init__(
        self, a: Tensor, b: Tensor, inner: KernelDerivatives, columns: Sequence[int]
    ) -> None:
        super().__init__(a, b)
        self.inner, self.places = inner, {column: place for place, column in enumerate(columns)}

    def part(self, i: Input, j: Input) -> Tensor | None:
        """That of the columns' places."""
        if any(column is not None and column not in self.places for column in (i, j)):
            return None
        own, other = (None if column is None else self.places[column] for column in (i, j))
        return self.inner.of(own, other)


class Unchanging(KernelDerivatives):
    """Of a kernel whose value does not change as its inputs move, but for steps.

    Args:
        a (..., d), b (..., d): inputs.
        value: k, of a shape that broadcasts to (...).
        kernel, steps: columns by which it has no derivative, and the kernel, for the error.
    """

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        value: Tensor,
        kernel: Kernel | None = None,
        steps: Collection[int] = (),
    ) -> None:
        super().__init__(a, b)
        self.value, self.kernel, self.steps = value, kernel, steps

    def part(self, i: Input, j: Input) -> Tensor | None:
        """The value, and None for all derivatives."""
        for column in (i, j):
            if self.kernel is not None and column in self.steps:
                raise no_derivatives(self.kernel, f"its input {column} is a category")
        return self.value if i is None and j is None else None
