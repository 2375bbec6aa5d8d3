"""Derivatives of kernels that are one function of a distance or of an inner product."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from torch import Tensor

from gpx.kernels.derivatives.base import Input, KernelDerivatives
from gpx.kernels.derivatives.maps import Moved

if TYPE_CHECKING:
    from gpx.kernels.stationary import Stationary


class OfDistance(KernelDerivatives):
    """Of a stationary kernel s phi(r2), r2 = sum_d (a_d - b_d)^2 / l_d^2, from its profile.

    Differences u_i = (a_i - b_i) / l_i^2 are taken directly, so that near rows lose no digits.

    Args:
        kernel: with ``slopes``: r2 -> phi, d phi / d r2 and d2 phi / d r2^2.
        a (..., d), b (..., d): its active inputs.
    """

    def __init__(self, kernel: Stationary, a: Tensor, b: Tensor) -> None:
        super().__init__(a, b)
        length = kernel.lengthscale.expand(a.shape[-1])
        self.inverse = 1.0 / length.square()
        apart = [a[..., i] - b[..., i] for i in range(a.shape[-1])]
        self.steps = [own * inverse for own, inverse in zip(apart, self.inverse, strict=True)]
        r2 = reduce(operator.add, (u * own for u, own in zip(self.steps, apart, strict=True)))
        value, slope, bend = kernel.slopes(r2)
        scale = kernel.outputscale
        self.value, self.slope, self.bend = scale * value, 2.0 * scale * slope, -4.0 * scale * bend

    def part(self, i: Input, j: Input) -> Tensor | None:
        """s phi, 2 s phi' u_i, -2 s phi' u_j, or -4 s phi'' u_i u_j and for i = j -2 s phi' / l^2.

        Both derivatives by l = l_i.
        """
        if i is None and j is None:
            return self.value
        if j is None:
            assert i is not None
            return self.slope * self.steps[i]
        if i is None:
            return -self.slope * self.steps[j]
        mixed = self.bend * self.steps[i] * self.steps[j]
        return mixed - self.slope * self.inverse[i] if i == j else mixed


class OfCoordinates(KernelDerivatives):
    """Of a stationary kernel s phi(|c(a) - c(b)|^2) of other coordinates c than x / lengthscale.

    Args:
        kernel: with ``slopes``.
        a (..., d), b (..., d): its active inputs.
    """

    def __init__(self, kernel: Stationary, a: Tensor, b: Tensor) -> None:
        super().__init__(a, b)
        self.left, self.right = Moved(kernel.coordinates, a), Moved(kernel.coordinates, b)
        apart = self.left.at - self.right.at
        self.apart = apart
        value, slope, bend = kernel.slopes(apart.square().sum(-1))
        scale = kernel.outputscale
        self.value, self.slope, self.bend = scale * value, 2.0 * scale * slope, -4.0 * scale * bend

    def part(self, i: Input, j: Input) -> Tensor | None:
        """As ``OfDistance``, with (dc / dx_i) . (c - c') in place of u_i."""
        if i is None and j is None:
            return self.value
        if j is None:
            return self.slope * (self.left.by(i) * self.apart).sum(-1)
        if i is None:
            return -self.slope * (self.right.by(j) * self.apart).sum(-1)
        own, other = self.left.by(i), self.right.by(j)
        mixed = self.bend * (own * self.apart).sum(-1) * (other * self.apart).sum(-1)
        return mixed - self.slope * (own * other).sum(-1)


class OfInnerProduct(KernelDerivatives):
    """Of k = F(g), g = sum_d w_d a_d b_d.

    Args:
        a (..., d), b (..., d): inputs.
        weight () or (d,): w.
        outer: g -> F, F' and F'', the latter None where it is zero.
    """

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        weight: Tensor,
        outer: Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]],
    ) -> None:
        super().__init__(a, b)
        self.left, self.right = a * weight, b * weight
        self.weight = weight.expand(a.shape[-1])
        self.value, self.slope, self.bend = outer((self.left * b).sum(-1))

    def part(self, i: Input, j: Input) -> Tensor | None:
        """F, F' w_i b_i, F' w_j a_j, or F'' w_i b_i w_j a_j and for i = j F' w_i."""
        if i is None and j is None:
            return self.value
        if j is None:
            return self.slope * self.right[..., i]
        if i is None:
            return self.slope * self.left[..., j]
        own = self.slope * self.weight[i] if i == j else None
        if self.bend is None:
            return own
        mixed = self.bend * (self.right[..., i] * self.left[..., j])
        return mixed if own is None else mixed + own
