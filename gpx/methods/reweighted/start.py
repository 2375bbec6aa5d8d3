"""Where regression on a re-weighted basis starts: the functions fixed, the data summed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases import Basis, GridEigenfunctions, ImportanceWeightedFourier, InducingPoints
from gpx.bases.grid_eigenfunctions.start import choose_eigenfunctions, scales_for
from gpx.bases.sufficient_statistics import SufficientStatistics, sufficient_statistics


class Start(NamedTuple):
    """What ``fix_functions`` did.

    Attributes:
        statistics: sums over the data.
        noise (): noise variance to start from.
        note: for people.
    """

    statistics: SufficientStatistics
    noise: Tensor
    note: str


@torch.no_grad()
def fix_functions(
    basis: Basis,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    *,
    noise_first: bool,
    sweeps: int,
    generator: torch.Generator,
    unit_noise: bool = False,
) -> Start:
    """Choose, draw or place the functions for the kernel and the data, and sum over the data.

    Args:
        basis: moves, and with ``noise_first`` the hyperparameters of a grid's kernel.
        x (n, d), residual (n,): inputs and y - m(x).
        noise (): noise variance of the kernel's fit.
        noise_first: for eigenfunctions of a grid: fit lengthscales, outputscale and noise to them.
        sweeps: of the search for lengthscales, see ``search_lengthscales``.
        generator: of rows.
        unit_noise: keep a noise variance of one: the outputscale takes the ratio of the two.
    """
    note = f"{basis.num_basis} functions"
    if isinstance(basis, GridEigenfunctions):
        ratio = float(noise / basis.factors.outputscale)
        note = choose_eigenfunctions(
            basis, x, residual, ratio, fit=noise_first, sweeps=sweeps, generator=generator
        ).note
    if isinstance(basis, ImportanceWeightedFourier):
        basis.draw()
    if isinstance(basis, InducingPoints):
        chosen = torch.randperm(len(x), generator=generator, device=x.device)
        basis.centres.copy_(x[chosen[: basis.num_basis].sort().values])
    statistics = sufficient_statistics(basis, x, residual)
    if not (isinstance(basis, GridEigenfunctions) and noise_first):
        return Start(statistics, noise.double(), note)
    factor, noise, remark = scales_for(statistics, x.shape[1])
    if unit_noise:
        factor, noise = factor / noise, torch.ones_like(noise)
    basis.factors.set_outputscale(factor * basis.factors.outputscale)
    return Start(statistics.scaled(factor), noise.double(), note + remark)
