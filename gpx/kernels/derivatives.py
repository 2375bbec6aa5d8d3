"""Kernels differentiated by their inputs: covariances of a function with its partial derivatives.

With f of covariance k, cov(df/dx_i, f') = dk/dx_i, cov(f, df'/dx'_j) = dk/dx'_j and
cov(df/dx_i, df'/dx'_j) = d2k / dx_i dx'_j (Rasmussen and Williams 2006, section 9.4).
"""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotAvailable

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel
    from gpx.kernels.stationary import Stationary

Input = int | None
"""Column of x by which is differentiated; None: the function itself."""

SUPPORTED = "RBF(), Matern52(), Matern32(), RationalQuadratic(), Periodic() or Polynomial()"
STEP = 1e-3
"""Steps of the differences that derivatives are checked by, in lengthscales of the kernel."""
AGREEMENT = 0.1
"""Relative difference from them that is allowed; a Matern-3/2 kernel has some thousandths."""


class KernelDerivatives(ABC):
    """k of rows a and b, and its derivatives by single inputs, all differentiable in parameters.

    A subclass writes ``part``. Values are computed when they are asked for; those of first order,
    which products of kernels need again and again, are kept.

    Args:
        a (..., d), b (..., d): inputs, whose leading dimensions are broadcast: (n1, 1, d) and
            (1, n2, d) for all pairs, (n, d) and (n, d) for corresponding rows.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        self.shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        self._kept: dict[tuple[Input, Input], Tensor | None] = {}

    @abstractmethod
    def part(self, i: Input, j: Input) -> Tensor | None:
        """k differentiated by a_i, where i is given, and by b_j, where j is; None where it is 0.

        Of a shape that broadcasts to that of all pairs (...).
        """

    def of(self, i: Input, j: Input) -> Tensor | None:
        """``part``, kept if it is of order one or zero."""
        if i is not None and j is not None:
            return self.part(i, j)
        if (i, j) not in self._kept:
            self._kept[i, j] = self.part(i, j)
        return self._kept[i, j]

    def entry(self, i: Input, j: Input) -> Tensor:
        """``part`` (...), with zeros in place of None."""
        found = self.of(i, j)
        return self.a.new_zeros(self.shape) if found is None else found.expand(self.shape)


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


class ByAutograd(KernelDerivatives):
    """Of any kernel whose ``pairs`` torch can differentiate twice.

    Args:
        kernel: evaluated by ``pairs``.
        a (..., d), b (..., d): inputs.

    Cost: one evaluation and a backward pass for every input that is asked for.
    """

    def __init__(self, kernel: Kernel, a: Tensor, b: Tensor) -> None:
        super().__init__(a, b)
        self.kernel, self.keep = kernel, torch.is_grad_enabled()
        flat = [part.expand(*self.shape, a.shape[-1]).flatten(0, -2) for part in (a, b)]
        self.left, self.right = (
            x if x.requires_grad else x.detach().clone().requires_grad_() for x in flat
        )
        with torch.enable_grad():
            self.value = kernel.pairs(self.left, self.right)
        self._found: dict[tuple[bool, Input], Tensor | None] = {}

    def part(self, i: Input, j: Input) -> Tensor | None:
        """By one or two passes of autograd."""
        if i is None and j is None:
            return self._out(self.value)
        if j is None:
            return self._column(self._slopes(self.left), i)
        return self._column(self._slopes(self.right, i), j)

    def _slopes(self, rows: Tensor, first: Input = None) -> Tensor | None:
        """Gradients (pairs, d) by rows of one side, of k or of its derivative by a_first."""
        key = (rows is self.left, first)
        if key not in self._found:
            value: Tensor | None = self.value
            with torch.enable_grad():
                if first is not None:
                    before = self._slopes(self.left)
                    value = None if before is None else before[:, first]
                self._found[key] = self._gradient(value, rows)
        return self._found[key]

    def _gradient(self, value: Tensor | None, rows: Tensor) -> Tensor | None:
        if value is None or not value.requires_grad:
            return None
        try:
            (found,) = torch.autograd.grad(
                value.sum(), rows, create_graph=True, retain_graph=True, allow_unused=True
            )
        except NotAvailable as error:
            raise no_derivatives(self.kernel, "torch cannot differentiate it twice") from error
        return found

    def _column(self, slopes: Tensor | None, i: Input) -> Tensor | None:
        return None if slopes is None else self._out(slopes[:, i])

    def _out(self, found: Tensor) -> Tensor:
        found = found.reshape(self.shape)
        return found if self.keep else found.detach()


def no_derivatives(kernel: Kernel, why: str) -> ConfigError:
    """The error for a kernel that has no derivatives by its inputs, or does not say them."""
    return ConfigError(
        f"kernel {kernel.name} has no covariances with derivatives: {why}; take kernel="
        f"{SUPPORTED}, or sums and products of them; a kernel of your own writes derivatives(a, b),"
        " or where it is Stationary slopes(r2)"
    )


@torch.no_grad()
def check_derivatives(kernel: Kernel, x: Tensor, inputs: Sequence[int]) -> None:
    """Raise ConfigError unless ``derivatives`` of the kernel are those of its covariance.

    The variance of every derivative is compared with a difference quotient of the covariance at
    rows next to each other, which has no limit where the functions are not differentiable.

    Args:
        x (n, d): few inputs; a GPU is waited for.
        inputs: columns by which is differentiated.

    Cost: four values of the kernel for every input and row.
    """
    if not len(x):
        return
    exact = _in_double(kernel)
    at = x.detach().double()
    found = exact.derivatives(at, at)
    value = found.entry(None, None)
    for i in inputs:
        variance = found.entry(i, i)
        step = torch.zeros_like(at)
        # a lengthscale is that distance over which correlations of the derivative change
        length = (value / variance.abs().clamp_min(1e-12)).abs().sqrt().clamp(1e-3, 1e3)
        step[:, i] = STEP * torch.where(length.isfinite(), length, 1.0)
        ends = at + 0.5 * step, at - 0.5 * step
        values = [exact.pairs(a, b) for a in ends for b in ends]
        quotient = (values[0] - values[1] - values[2] + values[3]) / step[:, i].square()
        scale = torch.maximum(variance.abs(), 1e-6 * value.abs())
        if bool(((quotient - variance).abs() <= AGREEMENT * scale).all()):
            continue
        raise no_derivatives(
            kernel,
            f"it says that of input {i} has the variance {float(variance[0]):.3g}, and difference "
            f"quotients of its functions have {float(quotient[0]):.3g}",
        )


def _in_double(kernel: Kernel) -> Kernel:
    """The kernel, or a copy of it in float64."""
    if all(p.dtype == torch.float64 for p in kernel.parameters()):
        return kernel
    return copy.deepcopy(kernel).double()
