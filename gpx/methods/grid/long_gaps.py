"""A preconditioner for filling where long stretches of an axis are without data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.methods.grid.system import GridSystem

LONG_RUN = 64
"""Cells without data in a row from which most of them know little of the data around them."""


class LongGaps:
    """An approximate inverse of F = C[Z, Z]: K + sigma^2 I on long gaps, elsewhere sigma^2 I.

    F^{-1} is the covariance of the gaps' targets given the data: that of the prior far inside a
    stretch without data, such as what closes an axis to a circle, and little more than the noise
    variance at scattered gaps. Filling then takes tens of steps instead of hundreds.

    Args:
        system: with at least one axis closed to a circle, along which gaps are measured.

    Cost: one Kronecker product per application; memory O(L).
    """

    def __init__(self, system: GridSystem) -> None:
        self.system = system
        long = torch.zeros(system.size, dtype=torch.bool, device=system.spectrum.shifted.device)
        observed = torch.zeros_like(long)
        observed[system.rows.cells] = True
        shape = system.rows.grid.shape
        for axis in range(len(shape)):
            if system.rows.grid.circular(axis):
                outside = shape[axis] - system.rows.grid.inner_shape[axis]
                long |= _runs(~observed, shape, axis, min(LONG_RUN, outside))
        self.inside = long[system.rows.gaps].nonzero().squeeze(1)
        self.cells = system.rows.gaps[self.inside]

    def __call__(self, vectors: Tensor) -> Tensor:
        """The approximate inverse times vectors (L,) or (L, c)."""
        out = vectors * self.system.noise
        part = self.system.covariance(self.cells, self.cells, vectors[self.inside])
        out[self.inside] += part
        return out


def _runs(flags: Tensor, shape: tuple[int, ...], axis: int, least: int) -> Tensor:
    """Which true flags (M,) lie in at least ``least`` true ones in a row along a circular axis."""
    m = shape[axis]
    rows = flags.view(math.prod(shape[:axis]), m, -1)
    starts = _windows(rows, least) == least  # a run begins here, going forwards
    found = _windows(starts.flip(1), least).flip(1) > 0
    return found.reshape(-1)


def _windows(flags: Tensor, width: int) -> Tensor:
    """Number of true flags (b, m, r) among the next ``width`` along the circular middle axis."""
    total = torch.cat([flags, flags[:, : width - 1]], 1).to(torch.int32).cumsum(1)
    before = torch.cat([torch.zeros_like(total[:, :1]), total[:, : flags.shape[1] - 1]], 1)
    return total[:, width - 1 :] - before
