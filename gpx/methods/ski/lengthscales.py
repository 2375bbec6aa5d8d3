"""Lower bounds on lengthscales: a grid does not resolve lengthscales below its spacing."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from gpx.constraints import FLOOR, floor_of, raise_floor
from gpx.kernels.base import Kernel
from gpx.kernels.periodic import Periodic
from gpx.kernels.stationary import Stationary
from gpx.warned_line import users_line


def spacing_floors(kernel: Kernel, spacing: Tensor, varies: Tensor) -> Tensor:
    """Smallest lengthscale (k,) of each stationary part: the smallest spacing of its inputs.

    The lengthscale of a periodic kernel has the unit of angles: there the spacing is that of angles
    at the kernel's current periods.

    Args:
        spacing (d,): of every axis.
        varies (d,): whether an input is not constant.

    Source: Hultin 2017, section 5.2 (shorter lengthscales have spurious optima).
    """
    found = []
    for part in _parts(kernel):
        seen = slice(None) if part.active_dims is None else part.active_dims
        own = spacing[seen]
        if isinstance(part, Periodic):
            own = own * (2.0 * math.pi / part.period.detach().to(own))
        own = own[varies[seen]]
        found.append(own.min() if own.numel() else spacing.new_tensor(FLOOR))
    return torch.stack(found) if found else spacing.new_zeros(0)


def bound_lengthscales(kernel: Kernel, floors: Tensor, *, warn: bool = True) -> None:
    """Raise the lower bound of every part's lengthscale to that of ``spacing_floors``.

    Args:
        warn: warn if a lengthscale has to grow.
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
                stacklevel=users_line(),
            )


def _parts(kernel: Kernel) -> list[Stationary]:
    return [
        part
        for part in kernel.modules()
        if isinstance(part, Stationary) and "lengthscale" in getattr(part, "parametrizations", ())
    ]
