"""A synthetic swirling flow seen by stereo particle image velocimetry, with drifting gaps.

It stands in for the measured swirl flame of Evans thesis, section 3.5.4, which is not public: a
mean jet with swirl plus divergence-free vortices of random strength that change smoothly over
some ten frames, energies falling as k^(-5/3); noise and gaps as such measurements have them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MODES, CORRELATION = 40, 10.0
NOISE = {"u": 0.05, "v": 0.05, "w": 0.15}
"""Noise standard deviation over the component's root mean square: w is the out-of-plane one."""


class Swirl(NamedTuple):
    """Components (rows, columns, frames) by name; ``observed`` marks cells without a gap."""

    truth: dict[str, Floats]
    measured: dict[str, Floats]
    observed: NDArray[np.bool_]


def swirl(shape: tuple[int, int, int], seed: int = 0) -> Swirl:
    """Velocity u (along columns), v (along rows) and w, noise, and gaps.

    Args:
        shape: rows, columns, frames.
        seed: of vortices, noise and gaps.
    """
    random = np.random.default_rng(seed)
    rows, columns, frames = shape
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    u_eddy, v_eddy = _vortices(x, y, frames, random)
    w_eddy, _ = _vortices(x, y, frames, random)
    u = 3.0 * np.exp(-((y / 0.5) ** 2)) - 0.5
    v = 0.8 * np.tanh(y / 0.3) * np.exp(-((y / 0.8) ** 2))
    w = 3.0 * y * np.exp(-((y / 0.5) ** 2))
    truth = {
        "u": u[:, :, None] + 1.5 * u_eddy,
        "v": v[:, :, None] + 1.5 * v_eddy,
        "w": w[:, :, None] + 1.5 * w_eddy,
    }
    measured = {
        name: field + NOISE[name] * np.sqrt((field**2).mean()) * random.standard_normal(shape)
        for name, field in truth.items()
    }
    return Swirl(truth, measured, ~_gaps(shape, random))


def _vortices(
    x: Floats, y: Floats, frames: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """u = d psi / dy, v = -d psi / dx of a random stream function, unit root mean square of u."""
    number = np.exp(random.uniform(np.log(2.0), np.log(12.0), MODES))
    angle = random.uniform(0.0, 2.0 * np.pi, MODES)
    k, l = number * np.cos(angle), number * np.sin(angle)
    # velocity amplitude k^(-5/6): energy per mode falls as k^(-5/3)
    strength = number ** (-5.0 / 6.0) / number
    phase = random.uniform(0.0, 2.0 * np.pi, (2, MODES))
    amplitude = _smooth(frames, random)
    advected = k[:, None] * 0.02 * np.arange(frames)  # carried along by the mean flow
    u = np.zeros((*x.shape, frames))
    v = np.zeros_like(u)
    for j in range(MODES):
        along = k[j] * x[:, :, None] - advected[j] + phase[0, j]
        across = (l[j] * y + phase[1, j])[:, :, None]
        weight = strength[j] * amplitude[j]
        u += weight * l[j] * np.sin(along) * np.cos(across)
        v -= weight * k[j] * np.cos(along) * np.sin(across)
    scale = np.sqrt((u**2).mean())
    return u / scale, v / scale


def _smooth(frames: int, random: np.random.Generator) -> Floats:
    """Amplitudes (modes, frames), unit variance, correlated over some ten frames.

    Three first-order filters in a row: one would be an Ornstein-Uhlenbeck process, which jitters
    from frame to frame as no flow filmed at 10 kHz does.
    """
    decay, before = np.exp(-3.0 / CORRELATION), 20 * int(CORRELATION)
    series = random.standard_normal((MODES, before + frames))
    for _ in range(3):
        for t in range(1, series.shape[1]):
            series[:, t] += decay * series[:, t - 1]
    return series[:, before:] / series[:, before // 2 :].std()


def _gaps(shape: tuple[int, int, int], random: np.random.Generator) -> NDArray[np.bool_]:
    """Three drifting ellipses, one to three of them seen in a frame, and 2 % single points."""
    rows, columns, frames = shape
    y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    gaps = random.random(shape) < 0.02
    for blob in range(3):
        radius = random.uniform(5.0, 8.0, 2)
        centre = random.uniform(0.2, 0.8, 2) * (rows, columns)
        # some ten frames pass until a gap has left a point
        drift = random.uniform(0.8, 1.2, 2) * random.choice([-1.0, 1.0], 2)
        for t in range(frames):
            if blob and (t // 15 + blob) % 3 == 0:
                continue
            at = (centre + drift * t) % (rows, columns)
            grown = radius * (1.0 + 0.2 * np.sin(0.2 * t + blob))
            gaps[:, :, t] |= ((y - at[0]) / grown[0]) ** 2 + ((x - at[1]) / grown[1]) ** 2 < 1.0
    return gaps
