"""The functions that ``Reweighted`` weights, by name."""

from __future__ import annotations

import torch

from gpx.bases import (
    Basis,
    GridEigenfunctions,
    GridOptions,
    ImportanceWeightedFourier,
    InducingPoints,
    Proposal,
)
from gpx.bases.fourier.variants import FOURIER
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel

BASES = ("grief", "dictionary", "importance_weighted", *FOURIER)


def reweighted_basis(
    name: str,
    kernel: Kernel,
    num_inputs: int,
    num_basis: int,
    *,
    num_data: int | None = None,
    grid: GridOptions | None = None,
    factor_jitter: float = 1e-12,
    proposal: Proposal | None = None,
    seed: int = 0,
) -> Basis:
    """The basis ``name`` of ``kernel``; arguments as for ``Reweighted``.

    Raises:
        ConfigError: an unknown name, or options that do not fit it.
    """
    if name not in BASES:
        raise ConfigError(f"approx.basis={name}: expected one of {', '.join(BASES)}")
    if name == "grief":
        return GridEigenfunctions(kernel, num_inputs, num_basis, grid, factor_jitter)
    if name == "dictionary":
        if num_data is None:
            raise ConfigError("approx.basis=dictionary needs approx.num_data, one centre a row")
        return InducingPoints(kernel, torch.zeros(min(num_data, num_basis), num_inputs))
    if name == "importance_weighted":
        return ImportanceWeightedFourier(kernel, num_basis, num_inputs, seed, proposal)
    return FOURIER[name](kernel, num_basis, seed)
