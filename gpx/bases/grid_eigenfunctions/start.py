"""Initial choice of the grid, its eigenfunctions, outputscale and noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.base import Spent, never
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.grid_eigenfunctions.search import best_scales, search_lengthscales
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.linalg import require_memory

SQUARE_ARRAYS = 8
"""Number of p x p arrays that training holds at once."""

ALL_NOISE_SHARE = 0.99
"""If the noise variance is above this share of the targets' mean square, the functions explain
nothing."""

MIN_NOISE = 2e-6
"""Smallest initial noise variance: twice the floor of the parameter."""


class Chosen(NamedTuple):
    """Result of ``choose_eigenfunctions``.

    Attributes:
        note: log message with the size of the grid and the changes.
        gain: of the search for lengthscales, in nats over the rows that it used.
    """

    note: str
    gain: float


def require_sums(option: str, functions: int, device: torch.device) -> None:
    """Raise ConfigError where sums of p x p do not fit into memory.

    Args:
        option: name of the option for p, for the message.
        functions: p.
        device: of the sums.
    """

    def fewer(free: int) -> str:
        most = math.isqrt(free // (SQUARE_ARRAYS * 8))
        return f"use at most {most}, beyond a few thousand model=QSGP() with basis=GridFeatures()"

    what = f"{option}={functions}, for sums of {functions} x {functions},"
    require_memory(SQUARE_ARRAYS * 8 * functions**2, device, what, fewer)


def choose_eigenfunctions(
    basis: GridEigenfunctions,
    x: Tensor,
    residual: Tensor,
    ratio: float,
    *,
    fit: bool,
    sweeps: int,
    generator: torch.Generator,
    spent: Spent = never,
) -> Chosen:
    """Place the grid and select eigenfunctions, after a search for lengthscales with ``fit``.

    Args:
        basis: changed in place; with ``fit`` also the lengthscales of its kernel.
        x (n, d), residual (n,): inputs and y - m(x).
        ratio: noise variance over outputscale.
        fit: whether to raise lengthscales that the grid cannot resolve, and to search.
        sweeps: of the search, see ``search_lengthscales``.
        generator: draws its rows.
        spent: asked during the search whether to stop.
    """
    basis.place(x)
    raised = basis.raise_lengthscales(x) if fit else []
    note, gain = "", 0.0
    if raised:
        note += f"; lengthscales of {len(raised)} inputs raised to the spacing of the grid"
    if fit:
        found = search_lengthscales(
            basis, x, residual, ratio, sweeps, generator=generator, spent=spent
        )
        gain = found.gain * found.rows
        if found.gain > 0.0:
            note += (
                f"; {found.evaluations} sets of lengthscales compared, evidence/point "
                f"{found.gain:+.4f}"
            )
    basis.select()
    size = f"10^{basis.log10_grid_size:.1f} inducing points"
    return Chosen(f"{basis.num_basis} eigenfunctions of {size}{note}", gain)


def scales_for(
    sums: SufficientStatistics,
    inputs: int,
    outputscale: Tensor | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor, str]:
    """Outputscale and noise variance of largest evidence, with a remark if it is all noise.

    Args:
        sums: of rows without weights.
        inputs: d.
        outputscale (): a fixed factor on the outputscale of the features; None: the best one.
        noise (): a fixed noise variance; None: the best one.

    Returns:
        factor () on the outputscale of the features, noise () (at least 2e-6 if it is not fixed),
        remark.
    """
    fixed = noise
    outputscale, noise = best_scales(sums, outputscale, fixed)
    remark = ""
    if noise > ALL_NOISE_SHARE * sums.squared / sums.num_data:
        remark = (
            "; they explain nothing of the targets: start from longer lengthscales, "
            f"lengthscale={math.sqrt(inputs):.1f}"
        )
    return outputscale, noise.clamp_min(MIN_NOISE) if fixed is None else noise, remark
