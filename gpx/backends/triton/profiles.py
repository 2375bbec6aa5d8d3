"""Triton: the stationary profiles and their derivatives, elementwise on a tile.

The squared distance arrives multiplied by a factor that depends on the profile (``factor``), at no
cost, because it is part of the matrix product that computes the distances. Exponentials then become
powers of two, for which GPUs have an instruction.
"""

import math
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpx.backends.radial_parts import RadialPart

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
"""Whether Triton runs its kernels in NumPy on CPU tensors; read once, as Triton does."""

FLOOR = -70.0 * math.log2(math.e)
"""Powers of two below this are raised to it: exp(-70), as in the kernels' own profiles."""

NATIVE = tl.constexpr(not INTERPRETED)
LOWEST = tl.constexpr(FLOOR)
FARTHEST = tl.constexpr(FLOOR**2)
FARTHEST_RATIO = tl.constexpr(1e30)
TINY = tl.constexpr(1e-30)
LN2 = tl.constexpr(math.log(2.0))
LOG2E = tl.constexpr(math.log2(math.e))

# log(1 + u) in float32: 1 + u loses the digits of u, and with a large shape alpha, in which u is
# proportional to 1 / alpha and the exponent is -alpha log(1 + u), that would show
SMALL = tl.constexpr(0.15)
"""Up to here log2(1 + u) is a polynomial in float32; above, the GPU's logarithm is as good."""
SMALL_SLOPE = tl.constexpr(0.25)
"""Up to here the derivative in the shape, which is of order u^2, is a polynomial in float32."""


def factor(part: RadialPart) -> float | Tensor:
    """Factor of the squared distance for this profile; 0-d if a tensor."""
    if part.profile == "rational_quadratic":
        assert part.shape is not None
        return 0.5 / part.shape
    if part.profile == "rbf":
        return -0.5 * math.log2(math.e)
    twice_nu = {"matern12": 1.0, "matern32": 3.0, "matern52": 5.0}[part.profile]
    return twice_nu * math.log2(math.e) ** 2


def plain_profile(part: RadialPart, r2: Tensor) -> Tensor:
    """``radial`` in torch: phi(r2), differentiable for r2 > 0."""
    if part.profile == "rbf":
        return torch.exp(-0.5 * r2)
    if part.profile == "rational_quadratic":
        assert part.shape is not None
        return torch.exp(-part.shape * torch.log1p(r2 / (2.0 * part.shape)))
    if part.profile == "matern12":
        return torch.exp(-r2.sqrt())
    if part.profile == "matern32":
        a = (3.0 * r2).sqrt()
        return (1.0 + a) * torch.exp(-a)
    a = (5.0 * r2).sqrt()
    return (1.0 + a + a * a / 3.0) * torch.exp(-a)


@triton.jit
def within(t, LOW: tl.constexpr, HIGH: tl.constexpr):
    """t clamped; NaN stays NaN, unlike with the default minimum of a GPU."""
    ALL: tl.constexpr = tl.PropagateNan.ALL
    return tl.minimum(tl.maximum(t, LOW, propagate_nan=ALL), HIGH, propagate_nan=ALL)


@triton.jit
def _root(t):
    """sqrt(t) of clamped t; in float32 one instruction and a product, with 1e-15 for zero."""
    if t.dtype == tl.float64:
        root = tl.sqrt(within(t, 0.0, FARTHEST))
    else:
        t = within(t, TINY, FARTHEST)
        root = t * tl.rsqrt(t)
    return root


@triton.jit
def _log2(x):
    """log2, in float32 by the GPU's instruction, with absolute error 2e-7 near one."""
    if NATIVE and x.dtype == tl.float32:
        found = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        found = tl.log2(x)
    return found


@triton.jit
def _log2_1p(u):
    """log2(1 + u) for u >= 0; in float32 with an error of 6e-7 of itself up to SMALL."""
    found = _log2(1.0 + u)
    if u.dtype == tl.float32:
        v = u if NATIVE else tl.minimum(u, SMALL)  # NumPy warns of powers that are not used
        small = 0.47439541188322926 - 0.28724848305423073 * v
        small = 1.44269416688322 + v * (-0.7211578891600379 + v * small)
        found = tl.where(u <= SMALL, v * small, found)
    return found


@triton.jit
def _shape_slope(u, log2_1p, inverse):
    """u / (1 + u) - log(1 + u) for u >= 0, of log2(1 + u) and 1 / (1 + u).

    In float32 without its cancellation at small u.
    """
    found = u * inverse - LN2 * log2_1p
    if u.dtype == tl.float32:
        v = u if NATIVE else tl.minimum(u, SMALL_SLOPE)
        # (u - log(1 + u)) / u^2 with an error of 8e-9
        bend = 0.15080461993910274 - 0.07821361893594043 * v
        bend = 0.2498919762927695 + v * (-0.19807993439936056 + v * bend)
        bend = 0.4999999923208690 + v * (-0.33333107961350955 + v * bend)
        found = tl.where(u <= SMALL_SLOPE, v * v * (bend - inverse), found)
    return found


@triton.jit
def _power(log2_1p, shape):
    """(1 + u)^-shape of log2(1 + u) >= 0."""
    return tl.exp2(tl.maximum(-shape * log2_1p, LOWEST, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def radial(t, shape, PROFILE: tl.constexpr):
    """phi of a tile of ``factor * r2``; negative rounding errors and exponents are clamped."""
    if PROFILE == "rbf":
        value = tl.exp2(within(t, LOWEST, 0.0))
    elif PROFILE == "rational_quadratic":
        value = _power(_log2_1p(tl.maximum(t, 0.0, propagate_nan=tl.PropagateNan.ALL)), shape)
    else:
        a = _root(t)
        value = tl.exp2(-a)
        if PROFILE == "matern32":
            value *= 1.0 + a * LN2
        elif PROFILE == "matern52":
            value *= 1.0 + a * (LN2 + a * (LN2 * LN2 / 3.0))
    return value


@triton.jit
def radial_slopes(t, shape, PROFILE: tl.constexpr):
    """phi, d phi / d r2 (zero at r2 = 0 where there is none) and d phi / d shape."""
    if PROFILE == "rational_quadratic":
        u = within(t, 0.0, FARTHEST_RATIO)
        inverse = 1.0 / (1.0 + u)
        log2_1p = _log2_1p(u)
        value = _power(log2_1p, shape)
        slope = -0.5 * value * inverse
        by_shape = value * _shape_slope(u, log2_1p, inverse)
    else:
        value = radial(t, shape, PROFILE)
        by_shape = value
        if PROFILE == "rbf":
            slope = -0.5 * value
        else:
            a = _root(t)
            e = tl.exp2(-a)
            if PROFILE == "matern12":
                slope = tl.where(t <= TINY, 0.0, -0.5 * LOG2E * e / tl.maximum(a, 1e-15))
            elif PROFILE == "matern32":
                slope = -1.5 * e
            else:
                slope = (-5.0 / 6.0) * e * (1.0 + a * LN2)
    return value, slope, by_shape
