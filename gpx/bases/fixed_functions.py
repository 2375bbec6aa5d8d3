"""Regression on fixed functions: choose them for the data, then sum over the data."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.bases.base import Basis, Spent, never
from gpx.bases.sufficient_statistics import (
    BYTES_PER_FEATURE,
    SufficientStatistics,
    accumulate_statistics,
    block_bytes,
    interpolation_statistics,
)


@torch.no_grad()
def sufficient_statistics(
    basis: Basis, x: Tensor, residual: Tensor, *, rows: int | None = None
) -> SufficientStatistics:
    """Sufficient statistics from one pass over the data, in blocks of features.

    Args:
        basis: at its final hyperparameters.
        x (n, d), residual (n,): inputs and y - m(x).
        rows: per block; None: as many as fit the device's cache.

    Cost: that of ``accumulate_statistics`` and the features; memory O(m^2 + block). Of sparse
    features with q entries a row: O(n q^2).
    """
    sparse = basis.sparse_rows(x)
    if sparse is not None:
        return interpolation_statistics(sparse, residual)
    row = basis.num_basis * BYTES_PER_FEATURE
    budget = block_bytes(x.device) if rows is None else rows * row

    def blocks() -> Iterator[tuple[Tensor, Tensor, None]]:
        for chosen in row_chunks(x.shape[0], row, budget):
            yield basis(x[chosen]).mT, residual[chosen], None

    return accumulate_statistics(blocks(), basis.num_basis, x)


class Start(NamedTuple):
    """Result of ``fix_functions``.

    Attributes:
        statistics: sums over the data.
        noise (): initial noise variance.
        note: log message.
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
    fixed_noise: bool = False,
    spent: Spent = never,
) -> Start:
    """Choose, draw or place the functions for the kernel and the data, and sum over the data.

    Args:
        basis: changed in place, with some bases also the hyperparameters of its kernel.
        x (n, d), residual (n,): inputs and y - m(x).
        noise (): noise variance of the kernel's fit.
        generator: source of randomness.
        spent: asked during a search for hyperparameters whether it must stop.
        unit_noise: keep a noise variance of one: the outputscale becomes the ratio of the two.
        fixed_noise: ``noise`` is not trained: the outputscale is the best one for it.
    """
    note = basis.start(x, residual, noise, generator=generator, spent=spent)
    statistics = sufficient_statistics(basis, x, residual)
    fixed = fixed_noise and not unit_noise
    given = {"noise": noise} if fixed and _takes_noise(basis) else {}
    found = basis.fit_scales(statistics, unit_noise=unit_noise, **given)
    if found is None:
        return Start(statistics, noise.double(), note)
    factor, best, remark = found
    noise = noise if fixed else best
    return Start(statistics.scaled(factor), noise.double(), note + remark)


def _takes_noise(basis: Basis) -> bool:
    """Whether ``fit_scales``, perhaps of a user's class, has the keyword ``noise``."""
    parameters = inspect.signature(basis.fit_scales).parameters
    return "noise" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
