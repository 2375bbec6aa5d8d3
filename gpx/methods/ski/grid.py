"""The grid of structured kernel interpolation, and a stationary kernel on it as an operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.backends import Entries
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg import PivotedCholesky, RegularAxis, pivoted_cholesky
from gpx.linalg.interpolation import Method, Outside
from gpx.operators import BlockToeplitz, Interpolation, Toeplitz

MARGIN = 2
"""Cells between the data and the ends of an axis: the stencil of cubic weights never leaves it."""
POINTS = {1: 10_000, 2: 90_000, 3: 64_000}
"""Most grid points that are taken unasked, by the number of inputs."""
PER_ROW = 2
"""Grid points per data row, in all, that are taken unasked."""
MOST_POINTS = 20_000_000
"""Above it a grid is refused: its vectors alone would take gigabytes."""


@dataclass(frozen=True)
class InterpolationGrid:
    """Regular axes over the data, row-major.

    Attributes:
        axes: one per input column.
        method: "cubic" or "linear" weights.
    """

    axes: tuple[RegularAxis, ...]
    method: Method = "cubic"

    @classmethod
    def covering(cls, x: Tensor, sizes: Sequence[int], method: Method) -> InterpolationGrid:
        """Over the range of every column of x (n, d), with two cells of margin on each side.

        Raises:
            ConfigError: an axis of fewer than six points.
        """
        low, high = x.detach().double().amin(0).tolist(), x.detach().double().amax(0).tolist()
        axes = [
            RegularAxis.covering(a, b, size, margin=MARGIN)
            for a, b, size in zip(low, high, sizes, strict=True)
        ]
        return cls(tuple(axes), method)

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of each axis."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """m, points of the whole grid."""
        return math.prod(self.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance between neighbouring points of each axis."""
        return tuple(axis.spacing for axis in self.axes)

    def weights(self, x: Tensor, outside: Outside = "error") -> Interpolation:
        """W (n, m), with 4^d or 2^d entries a row; float64 whatever x is in.

        Data never lie in the end cells of an axis; predictions there use its three last points.
        """
        return Interpolation.of(
            x.double(), self.axes, method=self.method, boundary="keys", outside=outside
        )

    def lags(self, kernel: Kernel, device: torch.device) -> Tensor:
        """k(0, tau) in float64 at the lags tau = (j_1 h_1, ..., j_d h_d): shape ``shape``.

        Differentiable in the kernel's parameters, which may be in float32: rounding of that size in
        a covariance would cost a small noise variance its meaning.
        """
        steps = [
            axis.spacing * torch.arange(axis.size, dtype=torch.float64, device=device)
            for axis in self.axes
        ]
        tau = torch.cartesian_prod(*steps).reshape(self.size, len(self.axes))
        named = dict(kernel.named_parameters())
        values = tuple(p.double() for p in named.values())
        entries = Entries(kernel, tuple(named), values, tau, tau, False)
        found = entries.call(lambda k: k.pairs(torch.zeros_like(tau), tau))
        return found.reshape(self.shape)

    def operator(self, lags: Tensor) -> Toeplitz | BlockToeplitz:
        """K (m, m) of the kernel between all grid points, products by FFT."""
        return Toeplitz(lags) if lags.ndim == 1 else BlockToeplitz(lags, grid=self.shape)

    @torch.no_grad()
    def low_rank(self, lags: Tensor, rank: int, tolerance: float) -> PivotedCholesky:
        """C (r, m) with C^T C <= K by greedy pivots; stops at a trace error of ``tolerance``.

        Cost: m r^2 multiply-adds; rows of K are looked up among the lags.
        """
        places = torch.stack(
            torch.unravel_index(torch.arange(self.size, device=lags.device), self.shape), -1
        )

        def rows(chosen: Tensor) -> Tensor:
            apart = (places[chosen].unsqueeze(1) - places).abs()
            return lags[apart.unbind(-1)]

        diagonal = lags.reshape(-1)[:1].expand(self.size)
        return pivoted_cholesky(rows, diagonal, min(rank, self.size), tolerance=tolerance)


def settled_sizes(sizes: int | Sequence[int] | None, num_data: int, num_inputs: int) -> list[int]:
    """Points of each axis: as asked, or for the number of data rows.

    Args:
        sizes: of every axis, one for all, or None.
        num_data, num_inputs: n and d.

    Raises:
        ConfigError: more than three inputs, another number of axes, too small or too large a grid.
    """
    if num_inputs > 3:
        raise ConfigError(
            f"a grid over {num_inputs} inputs has more points than any memory: structured "
            "interpolation takes up to 3 inputs; use GRIEF or inducing points (SGPR) beyond"
        )
    if sizes is None:
        wanted = min(PER_ROW * num_data, POINTS[num_inputs])
        sizes = max(2 * MARGIN + 6, math.ceil(wanted ** (1.0 / num_inputs)))
    found = [sizes] * num_inputs if isinstance(sizes, int) else [int(size) for size in sizes]
    if len(found) != num_inputs:
        raise ConfigError(f"grid_size={found} has {len(found)} axes for {num_inputs} inputs")
    if min(found) < 2 * MARGIN + 2:
        raise ConfigError(
            f"grid_size={found}: an axis needs at least {2 * MARGIN + 2} points, with "
            f"{MARGIN} cells of margin on each side"
        )
    if math.prod(found) > MOST_POINTS:
        raise ConfigError(
            f"grid_size={found} makes {math.prod(found):,} points, at most {MOST_POINTS:,} are "
            "taken; use fewer points an axis"
        )
    return found
