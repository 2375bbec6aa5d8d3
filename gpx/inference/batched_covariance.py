"""Covariance matrices of many small groups of inputs at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.backends.entries import at_precision_of
from gpx.kernels.algebra import Product, Sum
from gpx.kernels.base import Kernel
from gpx.kernels.distances import centre, is_trained
from gpx.kernels.fused import Profile, stationary_covariance
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.stationary import Stationary

MIN_SQUARED_DISTANCE = 1e-30
"""Squared distances are clamped to this: a square root has no derivative at zero."""


def batched_covariances(
    kernel: Kernel, left: Tensor, right: Tensor | None = None, *, mapped: bool = False
) -> Tensor:
    """k between the inputs of every group, differentiable in the parameters.

    Args:
        kernel: covariance function.
        left (b, p, d), right (b, q, d): inputs of b groups; None: the square matrices of ``left``.
        mapped: in ``torch.vmap``, which does not take the one pass of parts.

    Returns:
        (b, p, q).

    Cost: b p q kernel entries, in one pass over memory for kernels with a ``fused_profile`` and for
    each such part of a sum or product;
    kernels that are not a function of distances take d times the memory.
    """
    return at_precision_of(left, kernel, lambda own: _batched_covariances(own, left, right, mapped))


def _batched_covariances(
    kernel: Kernel, left: Tensor, right: Tensor | None, mapped: bool
) -> Tensor:
    if fused_profile(kernel) is not None:
        assert isinstance(kernel, Stationary)
        z1 = coordinates(kernel, left)
        z2 = None if right is None else coordinates(kernel, right)
        return covariances_from_coordinates(kernel, z1, z2, kernel.outputscale)
    if not mapped and isinstance(kernel, (Sum, Product)) and computes_as(kernel, Sum, Product):
        # each part in one pass, where it can
        parts = [_batched_covariances(part, left, right, False) for part in kernel.parts]
        return kernel._combine(parts)
    other = left if right is None else right
    b, p, d = left.shape
    q = other.shape[1]
    if not kernel.has_formula:
        rows = left.unsqueeze(2).expand(b, p, q, d).reshape(-1, d)
        columns = other.unsqueeze(1).expand(b, p, q, d).reshape(-1, d)
        return kernel.pairs(rows, columns).view(b, p, q)

    def squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
        z1, z2 = z1.view(b, p, z1.shape[1]), z2.view(b, q, z2.shape[1])
        # distances do not depend on the centre, so it carries no gradient
        guarded = not is_trained(kernel)
        origin = centre(z1.detach(), z2.detach(), right is None, guarded=guarded) if q else 0.0
        z1, z2 = z1 - origin, z2 - origin
        # shrunk by the rounding error, so that the distance of coincident inputs is clamped to zero
        shrink = 1.0 - 4.0 * torch.finfo(z1.dtype).eps
        norm1, norm2 = z1.square().sum(2) * shrink, z2.square().sum(2) * shrink
        cross = torch.baddbmm(norm1.unsqueeze(2) + norm2.unsqueeze(1), z1, z2.mT, alpha=-2.0)
        return cross.clamp_min(MIN_SQUARED_DISTANCE)

    found = kernel.formula(squared_distance, left.reshape(-1, d), other.reshape(-1, d))
    assert isinstance(found, Tensor)
    return found


def fused_profile(kernel: Kernel) -> type[Profile] | None:
    """Profile of a plain stationary kernel, whose matrices are made in one pass; None: no such."""
    return kernel.in_place if isinstance(kernel, Stationary) else None


def coordinates(kernel: Stationary, x: Tensor) -> Tensor:
    """Coordinates (b, p, q) of inputs x (b, p, d) for the kernel's distances."""
    found = kernel.coordinates(kernel._select(x.flatten(0, 1)))
    return found.view(*x.shape[:2], found.shape[1])


def covariances_from_coordinates(
    kernel: Kernel, z1: Tensor, z2: Tensor | None, scale: Tensor
) -> Tensor:
    """Matrices (b, p, q) of a kernel with a fused profile.

    Args:
        kernel: only its profile is used.
        z1 (b, p, q'), z2 (b, q, q'): coordinates; None: the square matrices of z1.
        scale: outputscale (), or of every group (b, 1, 1).
    """
    profile = fused_profile(kernel)
    assert profile is not None
    guarded = not is_trained(kernel)
    return stationary_covariance(z1, z1 if z2 is None else z2, scale, profile, guarded=guarded)
