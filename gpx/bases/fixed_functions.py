"""Where regression on fixed functions starts: chosen for the data, which are summed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.base import Basis
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
    generator: torch.Generator,
    unit_noise: bool = False,
) -> Start:
    """Choose, draw or place the functions for the kernel and the data, and sum over the data.

    Args:
        basis: moves, and for some bases the hyperparameters of its kernel.
        x (n, d), residual (n,): inputs and y - m(x).
        noise (): noise variance of the kernel's fit.
        generator: of what is drawn.
        unit_noise: keep a noise variance of one: the outputscale takes the ratio of the two.
    """
    note = basis.start(x, residual, noise, generator=generator)
    statistics = sufficient_statistics(basis, x, residual)
    found = basis.fit_scales(statistics, unit_noise=unit_noise)
    if found is None:
        return Start(statistics, noise.double(), note)
    factor, noise, remark = found
    return Start(statistics.scaled(factor), noise.double(), note + remark)
