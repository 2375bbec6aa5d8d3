"""Lengthscales stay above the spacing of the grid, which does not resolve shorter ones."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from gpx.constraints import FLOOR, floor_of, raise_floor
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary


def spacing_floors(kernel: Kernel, spacing: Tensor, varies: Tensor) -> Tensor:
    """Least lengthscale of each stationary part of a kernel, (k,): the finest axis that it sees.

    Args:
        spacing (d,): of every axis.
        varies (d,): which inputs are not constant.

    Source: Hultin 2017, section 5.2 (shorter ones have spurious optima).
    """
    found = []
    for part in _parts(kernel):
        seen = slice(None) if part.active_dims is None else part.active_dims
        own = spacing[seen][varies[seen]]
        found.append(own.min() if own.numel() else spacing.new_tensor(FLOOR))
    return torch.stack(found) if found else spacing.new_zeros(0)


def bound_lengthscales(kernel: Kernel, floors: Tensor, *, warn: bool = True) -> None:
    """Raise every part's floor to that of ``spacing_floors``.

    Args:
        warn: say where a lengthscale moves.
    """
    for part, floor in zip(_parts(kernel), floors.tolist(), strict=True):
        if floor == floor_of(part, "lengthscale"):
            continue
        shortest = float(part.lengthscale.detach().min())
        raise_floor(part, "lengthscale", floor)
        if warn and shortest < floor:
            warnings.warn(
                f"a lengthscale of {shortest:.3g} is below the grid's spacing of {floor:.3g}, and "
                "the grid does not resolve the kernel: it starts just above and will not go below; "
                "use more points (grid_size) for shorter ones",
                stacklevel=3,
            )


def _parts(kernel: Kernel) -> list[Stationary]:
    return [
        part
        for part in kernel.modules()
        if isinstance(part, Stationary) and "lengthscale" in getattr(part, "parametrizations", ())
    ]
