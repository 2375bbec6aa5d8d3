"""Triton: cosine and sine together, by the two polynomials of ``gpx/bases/fourier/fourier.c``.

Triton's own cosine and sine each reduce their argument, with a branch for huge ones that spills
registers. Here one reduction by multiples of pi / 2 is used for both.
"""

import triton
import triton.language as tl

from gpx.backends.triton.profiles import within

TWO_OVER_PI = tl.constexpr(0.63661977236758134308)
HALF_PI = tl.constexpr(1.5707963267948966)
HALF_PI_REST = tl.constexpr(6.123233995736766e-17)
HALF_PI_32 = tl.constexpr(1.57079637050628662109375)
HALF_PI_REST_32 = tl.constexpr(-4.37113900018624283e-8)
ROUNDER_32 = tl.constexpr(12582912.0)
"""Adding this to a float32 rounds it to an integer, whose bits are the last bits of the sum."""
ROUNDER = tl.constexpr(6755399441055744.0)
"""The same for float64."""


@triton.jit
def _polynomials(r):
    """cos r and sin r on [-pi/4, pi/4]."""
    z = r * r
    if r.dtype == tl.float64:
        s = 1.58962301576546568060e-10 * z - 2.50507477628578072866e-8
        s = (s * z + 2.75573136213857245213e-6) * z - 1.98412698295895385996e-4
        s = (s * z + 8.33333333332211858878e-3) * z - 1.66666666666666307295e-1
        c = -1.13585365213876817300e-11 * z + 2.08757008419747316778e-9
        c = (c * z - 2.75573141792967388112e-7) * z + 2.48015872888517045348e-5
        c = (c * z - 1.38888888888730564116e-3) * z + 4.16666666666665929218e-2
    else:
        s = (-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1
        c = (2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2
    return z * z * c + (1.0 - 0.5 * z), r * z * s + r


@triton.jit
def _turned(quarter, cosine, sine):
    """Cosine and sine of the angle plus ``quarter`` right angles."""
    odd = (quarter & 1) != 0
    first = tl.where(odd, sine, cosine)
    second = tl.where(odd, cosine, sine)
    return (
        tl.where(((quarter + 1) & 2) != 0, -first, first),
        tl.where((quarter & 2) != 0, -second, second),
    )


@triton.jit
def cosine_sine(angle):
    """cos and sin, with an error below 1.5 units in the last place of one for |angle| < 1e4 (1e6 in
    float64) and values bounded by one beyond; NaN and infinity give NaN.
    """
    if angle.dtype == tl.float64:
        shifted = angle * TWO_OVER_PI + ROUNDER
        quarter = shifted.to(tl.int64, bitcast=True).to(tl.int32)
        turns = shifted - ROUNDER
        r = (angle - turns * HALF_PI) - turns * HALF_PI_REST
    else:
        shifted = angle * TWO_OVER_PI + ROUNDER_32
        quarter = shifted.to(tl.int32, bitcast=True)
        turns = shifted - ROUNDER_32
        r = tl.fma(-turns, HALF_PI_REST_32, tl.fma(-turns, HALF_PI_32, angle))
    cosine, sine = _polynomials(within(r, -0.79, 0.79))
    return _turned(quarter, cosine, sine)


@triton.jit
def cosine_sine_of_turns(turns):
    """cos and sin of ``2 pi turns``, turns in [0, 1) float64, reduced exactly."""
    quarters = 4.0 * turns
    whole = tl.floor(quarters + 0.5)
    cosine, sine = _polynomials((quarters - whole) * HALF_PI)
    return _turned(whole.to(tl.int32), cosine, sine)
