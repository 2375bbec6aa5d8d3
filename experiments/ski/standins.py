"""Generated data that replace SARCOS and Abalone; the same kind of problem.

Sizes of the published splits are the defaults. Targets are in units of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LINKS = 7
LENGTH = 0.3
GRAVITY = 9.81


def sarcos_like(n: int = 44_484 + 4_449, seed: int = 0) -> tuple[Floats, Floats]:
    """Torque at the first joint of a planar arm of seven links: x (n, 21), y (n,).

    Inputs are joint angles, velocities and accelerations; tip masses fall from 2 to 0.5.
    """
    random = np.random.default_rng(seed)
    q = random.uniform(-1.0, 1.0, (n, LINKS))
    dq = 0.5 * random.standard_normal((n, LINKS))
    ddq = random.standard_normal((n, LINKS))
    angle, speed, turn = (np.cumsum(part, 1) for part in (q, dq, ddq))
    sin, cos = np.sin(angle), np.cos(angle)
    place = [np.cumsum(LENGTH * part, 1) for part in (cos, sin)]
    pull_x = np.cumsum(LENGTH * (-turn * sin - speed**2 * cos), 1)
    pull_y = np.cumsum(LENGTH * (turn * cos - speed**2 * sin), 1)
    mass = np.linspace(2.0, 0.5, LINKS)
    y = (mass * (place[0] * (pull_y + GRAVITY) - place[1] * pull_x)).sum(1)
    return np.concatenate([q, dq, ddq], 1), y


def abalone_like(n: int = 4_177, seed: int = 0) -> tuple[Floats, Floats]:
    """Rings of a shell from sex and seven measurements: x (n, 8), y (n,); mostly noise."""
    random = np.random.default_rng(seed)
    z = random.standard_normal(n)
    sex = random.integers(-1, 2, n).astype(np.float64)
    noise = random.standard_normal((n, 7))
    power = np.array([0.25, 0.25, 0.3, 0.7, 0.7, 0.7, 0.75])
    measured = np.exp(power * (z[:, None] + 0.25 * noise))
    g = np.tanh(z) + 0.25 * z + 0.3 * sex * (z < 0.0) - 0.075 * (noise[:, 4] - noise[:, 6])
    g = (g - g.mean()) / g.std()
    spread = 2.1 * random.standard_normal(n) * np.exp(0.25 * z - 0.03)
    y = np.clip(np.round(9.93 + 2.43 * g + spread), 1.0, 29.0)
    return np.concatenate([sex[:, None], measured], 1), y
