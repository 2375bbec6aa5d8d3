"""Stationary covariances in operations that autograd differentiates twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotAvailable
from gpx.linalg.known_gradient import first_derivative_only, twice_differentiable

Slopes = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""r2 -> phi, d phi / d r2 and d2 phi / d r2^2, elementwise (``Stationary.slopes``)."""


def covariance_again(
    x1: Tensor, x2: Tensor | None, lengthscale: Tensor | None, scale: Tensor, slopes: Slopes
) -> Tensor | None:
    """``scale * phi(|(x1_i - x2_j) / lengthscale|^2)`` (..., n1, n2), differentiable twice.

    Args:
        x1 (..., n1, d), x2 (..., n2, d): inputs; None: those of x1.
        lengthscale () or (d,): None: the inputs are already scaled.
        scale (), or (b, 1, 1).
        slopes: of the profile.

    None where the profile has no slopes. At coincident inputs derivatives are the limits, or 0
    where there is none (``Stationary.slopes``). Cost: five arrays of the size of the result.
    """
    z1 = x1 if lengthscale is None else x1 / lengthscale
    z2 = x2 if lengthscale is None or x2 is None else x2 / lengthscale
    try:
        value = _Value.apply(squared_distance_again(z1, z2), slopes)
    except ConfigError:  # functions that are nowhere differentiable
        return None
    assert isinstance(value, Tensor)
    return scale * value


def squared_distance_again(z1: Tensor, z2: Tensor | None) -> Tensor:
    """``|z1_i - z2_j|^2``, never negative, with the gradient it has without rounding."""
    square = z2 is None
    z2 = z1 if z2 is None else z2
    if z2.shape[-2]:
        origin = z2.detach().mean(-2, keepdim=True)
        z1, z2 = z1 - origin, z2 - origin
    norms = z1.square().sum(-1).unsqueeze(-1) + z2.square().sum(-1).unsqueeze(-2)
    found = norms - 2.0 * (z1 @ z2.mT)
    with torch.no_grad():
        rounded = (found - 4.0 * torch.finfo(found.dtype).eps * norms).clamp_min_(0.0)
        if square:
            rounded.diagonal(dim1=-2, dim2=-1).zero_()
        correction = rounded - found
    return found + correction


def one_at_zero(r2: Tensor, slopes: Slopes) -> Tensor:
    """phi(0) = 1 at squared distances r2 that are zero: ones of their shape, differentiable twice.

    The derivative by r2 does not count in the first derivatives by inputs, as that of r2 is zero,
    but does in the second. Where phi has none at zero, second derivatives raise NotAvailable. What
    it is where r2 is not zero must not be used.
    """
    found = _OneAtZero.apply(r2, slopes)
    assert isinstance(found, Tensor)
    return found


def _one_again(ctx: Any, _: Tensor) -> tuple[Tensor, Sequence[Tensor | None]] | None:
    (r2,) = ctx.saved_tensors
    view, slope = r2.view_as(r2), r2.new_zeros(1)
    if not bool(r2.all()):  # otherwise the result is used nowhere
        try:
            slope = ctx.slopes(slope)[1].detach()
        except ConfigError:  # functions that are nowhere differentiable
            return None
        if not bool(slope.isfinite()):
            return None
    return 1.0 + slope * view, (view, None)


class _OneAtZero(torch.autograd.Function):
    """phi(0), as a function of r2."""

    @staticmethod
    def forward(ctx: Any, r2: Tensor, slopes: Slopes) -> Tensor:
        ctx.save_for_backward(r2)
        ctx.slopes = slopes
        return torch.ones_like(r2)

    @staticmethod
    @twice_differentiable(_one_again)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.zeros_like(grad), None


class _Value(torch.autograd.Function):
    """phi(r2)."""

    @staticmethod
    def forward(ctx: Any, r2: Tensor, slopes: Slopes) -> Tensor:
        ctx.save_for_backward(r2)
        ctx.slopes = slopes
        return slopes(r2)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        (r2,) = ctx.saved_tensors
        slope: Any = _Slope.apply(r2, ctx.slopes)
        return grads[0] * slope, None


class _Slope(torch.autograd.Function):
    """d phi / d r2."""

    @staticmethod
    def forward(ctx: Any, r2: Tensor, slopes: Slopes) -> Tensor:
        _, slope, bend = slopes(r2)
        if not bool((slope.isfinite() & bend.isfinite()).all()):
            raise NotAvailable(
                "a second derivative was asked for of a profile whose slope or curvature by the "
                "squared distance is infinite at zero: define slopes(r2) of the kernel, with 0 "
                "there"
            )
        ctx.save_for_backward(r2, bend)
        return slope

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[1], None
