"""The functions that ``QSGP`` has weights of, by name."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.bases.fourier.spread import LEAST_SHARE, automatic_spread, carrying_share, checked_spread
from gpx.bases.fourier.variants import FOURIER, RANDOM
from gpx.bases.grid_eigenfunctions.features import GridFeatures
from gpx.errors import ConfigError

BASES: dict[str, type[RandomFourier] | type[GridFeatures]] = {**FOURIER, "grief": GridFeatures}

SAMPLED = 4096
"""Functions that tell how many of all carry the prior."""


def weight_space_basis(
    name: str,
    kernel: nn.Module,
    num_basis: int,
    *,
    seed: int = 0,
    block_frequencies: int = 500,
    spread: Literal["auto"] | float | Sequence[float] = 1.0,
) -> RandomFourier | GridFeatures:
    """The basis ``name`` of ``kernel``; arguments as for ``QSGP``.

    A spread that leaves the prior to few of the functions is a warning.

    Raises:
        ConfigError: an unknown name, or options that do not fit it.
    """
    if name not in BASES:
        raise ConfigError(f"approx.basis={name}: expected one of {', '.join(BASES)}")
    if isinstance(spread, str):
        if spread != "auto":
            raise ConfigError(f"approx.spread={spread}: expected auto or factors, at least one")
        spread = automatic_spread(kernel) if name in RANDOM else 1.0
    basis: RandomFourier | GridFeatures
    if name in RANDOM:
        basis = RANDOM[name](kernel, num_basis, seed, block_frequencies, spread)
        if basis.spread != (1.0,):
            _note_share(basis)
    elif checked_spread(spread) == (1.0,):
        basis = BASES[name](kernel, num_basis, seed, block_frequencies)
    else:
        raise ConfigError(
            f"approx.spread={spread} is of random frequencies; approx.basis={name} has none"
        )
    if basis.per_block == 1 and block_frequencies > 1 and num_basis > 2:
        raise ConfigError(
            f"num_basis={num_basis} would make blocks of a single frequency, because "
            f"num_basis / 2 = {num_basis // 2} has no divisor up to block_frequencies="
            f"{block_frequencies}; choose a num_basis with one, such as a round number"
        )
    return basis


def _note_share(basis: RandomFourier) -> None:
    """Warn where frequencies are drawn so far out that hardly any are where the kernel's are."""
    columns = torch.arange(min(basis.num_basis, SAMPLED))
    share = carrying_share(basis.precision_diagonal(columns).double().reciprocal())
    if share < LEAST_SHARE:
        warnings.warn(
            f"approx.spread={basis.spread}: about {share * basis.num_basis:.0f} of "
            f"{basis.num_basis} functions carry the prior, the others lie beyond the kernel's "
            "spectrum; take smaller factors, or auto",
            stacklevel=4,
        )
