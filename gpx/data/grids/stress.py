"""Synthetic grids of any size for stress tests: a vibrating membrane and Rastrigin's function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.data.grids.values import GridSource, GridValues, require_table_memory
from gpx.errors import ConfigError
from gpx.tensor_checks import check_at_least, check_not_negative, check_one_of

FIELDS = ("membrane", "rastrigin")


class GridStress(GridSource):
    """A known function on an equispaced grid in [0, 1]^d, with noise and random gaps.

    "membrane": a square membrane with fixed edges, three modes per side, rows by columns by time:
    y = sum_pq (A_pq cos w_pq t + B_pq sin w_pq t) sin(p pi x_1) sin(q pi x_2), w_pq = pi
    sqrt(p^2 + q^2). "rastrigin": 10 d + sum_l (u_l^2 - 10 cos 2 pi u_l) over u in [-5.12, 5.12]^d,
    standardised.

    Args:
        field: "membrane" or "rastrigin".
        shape: points per axis; three axes for the membrane.
        gap_share: share of cells without a value, in [0, 1).
        noise: standard deviation of the noise, in the field's own unit.
        seed: of coefficients, noise and gaps; not the seed of training.
        hold_out, hold_out_axis, split, test_fraction, root, split_seed: see ``GridSource``.

    Raises:
        ConfigError: no such field, a shape that does not fit, a share out of range.

    Source: Evans thesis, section 3.5.1; the membrane's coefficients as in the author's package.
    """

    def __init__(
        self,
        field: str = "membrane",
        shape: Sequence[int] = (60, 60, 12),
        gap_share: float = 0.2,
        noise: float = 0.1,
        seed: int = 0,
        hold_out: str = "cells",
        hold_out_axis: int = 0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(hold_out, hold_out_axis, None, split, test_fraction, root, split_seed)
        check_one_of(FIELDS, field=field)
        sizes = tuple(int(m) for m in shape)
        if not sizes or min(sizes) < 2 or (field == "membrane" and len(sizes) != 3):
            raise ConfigError(
                f"shape={list(sizes)}: expected at least 2 points per axis, and three axes "
                "for the membrane"
            )
        if not 0.0 <= gap_share < 1.0:
            raise ConfigError(f"gap_share={gap_share} must be in [0, 1)")
        check_not_negative(noise=noise)
        check_at_least(0, seed=seed)
        self.field, self.shape = field, sizes
        self.gap_share, self.noise, self.seed = gap_share, noise, seed

    def grid(self) -> GridValues:
        """Draw the values; raises ConfigError if memory does not suffice. Cost: O(cells)."""
        size, width = math.prod(self.shape), len(self.shape)
        rows = size - round(self.gap_share * size)
        require_table_memory(self.shape, width, rows, f"{self.field} generator", drawn=True)
        random = np.random.Generator(np.random.PCG64(self.seed))
        values = membrane(self.shape, random) if self.field == "membrane" else rastrigin(self.shape)
        values += self.noise * random.standard_normal(self.shape)
        gaps = round(self.gap_share * values.size)
        if gaps:
            values.ravel()[random.permutation(values.size)[:gaps]] = np.nan
        return GridValues(
            name=self.field,
            axes=tuple(np.linspace(0.0, 1.0, m) for m in self.shape),
            axis_names=tuple((f"x{i + 1}",) for i in range(len(self.shape))),
            values=values,
            value_name="y",
            origin=f"{self.field} generator",
            notes=f"simulated; {self.gap_share:.0%} of the cells are gaps",
        )


def membrane(shape: Sequence[int], random: np.random.Generator, modes: int = 3) -> Floats:
    """A solution of the wave equation on the unit square, (m_1, m_2, m_3)."""
    x1, x2, time = (np.linspace(0.0, 1.0, m) for m in shape)
    number = np.arange(1, modes + 1)
    scale = np.outer(random.standard_normal(modes), random.standard_normal(modes))
    cosine, sine = (random.standard_normal((modes, modes)) * scale for _ in range(2))
    omega = math.pi * np.sqrt(number[:, None] ** 2 + number[None, :] ** 2)
    phase = omega[:, :, None] * time
    motion = cosine[:, :, None] * np.cos(phase) + sine[:, :, None] * np.sin(phase)
    rows = np.sin(math.pi * np.outer(x1, number))
    columns = np.sin(math.pi * np.outer(x2, number))
    return np.ascontiguousarray(np.einsum("ap,bq,pqt->abt", rows, columns, motion, optimize=True))


def rastrigin(shape: Sequence[int]) -> Floats:
    """Standardised Rastrigin function over [-5.12, 5.12]^d."""
    parts = []
    for axis, m in enumerate(shape):
        u = np.linspace(-5.12, 5.12, m)
        one = 10.0 + u * u - 10.0 * np.cos(2.0 * math.pi * u)
        parts.append(one.reshape([-1 if i == axis else 1 for i in range(len(shape))]))
    whole = np.array(reduce(np.add, parts))
    return (whole - whole.mean()) / whole.std()
