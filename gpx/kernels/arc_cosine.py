"""Arc-cosine kernels: networks of one hidden layer, infinitely wide, with random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.kernels.base import Kernel
from gpx.kernels.parameters import dimensions, per_dimension
from gpx.tensor_checks import check_one_of


class ArcCosine(Kernel):
    """k = outputscale / pi |u|^n |v|^n J_n(angle of u and v), u = x / lengthscale, of order n.

    J_0 = pi - a, J_1 = sin a + (pi - a) cos a, J_2 = 3 sin a cos a + (pi - a) (1 + 2 cos^2 a). It
    is the mean of 2 outputscale h(w . u) h(w . v) over standard normal w, with h(t) = t^n for t > 0
    and 0 otherwise: steps, rectified linear units, their squares. It is not stationary, and a
    function drawn from it grows like |x|^n; at the origin, where none of the units is active, it is
    zero in every order.

    Args:
        order: n, 0, 1 or 2; fixed.
        ard_num_dims: number of lengthscales, one per (active) input; None for a single one.
        lengthscale: initial value(s), in the unit of x.
        outputscale: initial factor, in squared units of y.
        active_dims: columns of x that the kernel uses; None for all.

    Raises:
        ConfigError: another order, or lengthscales that disagree with ``ard_num_dims`` in number.
        ShapeError: when evaluated at inputs with another number of columns.

    Accuracy: angles come from cosines, with an absolute error of the root of machine epsilon where
    two inputs point in the same direction; order 0 has that error there, the others do not. The
    derivative of order 0 with respect to an input is taken as zero there (a subgradient).
    Source: Cho and Saul, "Kernel methods for deep learning", NIPS 2009.
    """

    lengthscale: Tensor
    outputscale: Tensor

    def __init__(
        self,
        order: int = 1,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float = 1.0,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        check_one_of((0, 1, 2), order=order)
        self.order = int(order)
        self.ard_num_dims = ard_num_dims = dimensions(ard_num_dims, lengthscale)
        positive_parameter(self, "lengthscale", per_dimension(lengthscale, ard_num_dims))
        positive_parameter(self, "outputscale", float(outputscale))

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``; exact on the diagonal when ``x1 is x2``."""
        unit1, size1 = self._polar(x1)
        unit2, size2 = (unit1, size1) if x1 is x2 else self._polar(x2)
        cosine = _rounded_to_unit(unit1 @ unit2.mT)
        if x1 is x2:
            cosine.fill_diagonal_(1.0)
        angular: Any = _Angular.apply(cosine, self.order)
        return (self.outputscale / math.pi) * angular * size1.unsqueeze(1) * size2

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, in O(n d); exact where the two inputs are the same."""
        unit1, size1 = self._polar(self._select(x1))
        unit2, size2 = self._polar(self._select(x2))
        cosine = _rounded_to_unit((unit1 * unit2).sum(1), (unit1 == unit2).all(1))
        angular: Any = _Angular.apply(cosine, self.order)
        return (self.outputscale / math.pi) * angular * size1 * size2

    def variance(self, x: Tensor) -> Tensor:
        """The outputscale times 1, |u|^2 or 3 |u|^4."""
        _, size = self._polar(x)
        return self.outputscale * (3.0 if self.order == 2 else 1.0) * size.square()

    def scaled(self, x: Tensor) -> Tensor:
        """x / lengthscale, (n, d).

        Raises:
            ShapeError: there are as many lengthscales as other inputs have columns.
        """
        self._check_columns(x)
        return x / self.lengthscale

    def _polar(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Directions (n, d), and |u|^n (n,), which is zero at the origin in every order."""
        scaled = self.scaled(x)
        length = torch.linalg.vector_norm(scaled, dim=1)
        origin = length == 0.0
        direction = scaled / length.masked_fill(origin, 1.0).unsqueeze(1)
        size = length.pow(self.order) if self.order else torch.ones_like(length)
        return direction, size.masked_fill(origin, 0.0)


def _rounded_to_unit(cosine: Tensor, same: Tensor | None = None) -> Tensor:
    """Clamped to [-1, 1] and, where directions are the ``same``, 1.

    The gradient is that without rounding: that of ``clamp`` is zero beyond the ends, where second
    derivatives by inputs are not.
    """
    with torch.no_grad():
        nearest = cosine.clamp(-1.0, 1.0)
        beyond = (nearest if same is None else nearest.masked_fill_(same, 1.0)) - cosine
    return cosine + beyond


class _Angular(torch.autograd.Function):
    """J_n of the cosine; its derivative n^2 J_{n-1} is finite where that of arccos is not."""

    @staticmethod
    def forward(ctx: Any, cosine: Tensor, order: int) -> Tensor:
        """J_n, elementwise."""
        ctx.save_for_backward(cosine)
        ctx.order = order
        rest = math.pi - torch.acos(cosine)
        if order == 0:
            return rest
        sine = (1.0 - cosine.square()).sqrt_()
        if order == 1:
            return sine.addcmul_(rest, cosine)
        return (3.0 * sine).mul_(cosine).addcmul_(rest, 1.0 + 2.0 * cosine.square())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None]:
        """As the class says; of J_0 it is 1 / sin, taken as zero at angles of 0 and pi.

        Angles that rounding cannot tell from these count as such: 1 / sin of them is noise, and its
        derivative more so.
        """
        (grad,) = grads
        (cosine,) = ctx.saved_tensors
        if ctx.order:
            lower: Any = _Angular.apply(cosine, ctx.order - 1)
            return grad * (ctx.order**2 * lower), None
        square = 1.0 - cosine.square()
        least = 8.0 * torch.finfo(cosine.dtype).eps
        return grad * torch.where(square > least, square, torch.inf).rsqrt(), None
