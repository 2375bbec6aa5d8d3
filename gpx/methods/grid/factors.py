"""A kernel as a product over the axes of a grid, with one small covariance matrix per axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import methodcaller
from typing import cast

import torch
from torch import Tensor

from gpx.backends.entries import in_double
from gpx.constraints import is_trained
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.constant import Constant
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.periodic import Periodic
from gpx.kernels.rbf import RBF
from gpx.kernels.stationary import Stationary
from gpx.kernels.structure import factors, leaves
from gpx.linalg.fft_products import fast_length
from gpx.methods.grid.axes import CartesianGrid
from gpx.methods.grid.circle import circle_lags, circulant_column


@dataclass
class AxisKernels:
    """k(x, x') = prod scales * prod_l k_l(x_l, x'_l).

    Attributes:
        scales: kernels of which an attribute (outputscale, scale, constant) multiplies the product,
            each with its name.
        parts: per axis the kernels to multiply, and whether their own scale is included.
        prior_scale (): a further, fixed factor; None: one.
    """

    scales: list[tuple[Kernel, str]] = field(default_factory=list)
    parts: list[list[tuple[Kernel, bool]]] = field(default_factory=list)
    prior_scale: Tensor | None = None

    def scale(self, like: Tensor) -> Tensor:
        """Product of all scales, ()."""
        values = [getattr(kernel, name) for kernel, name in self.scales]
        first = like.new_ones(()) if self.prior_scale is None else self.prior_scale.to(like)
        return reduce(torch.mul, values, first)

    def matrices(self, grid: CartesianGrid) -> list[Tensor]:
        """Covariance (m_l, m_l) of each axis; the first includes the scale.

        For a circle the first column (m_l,) of its circulant covariance. Differentiable in the
        kernel's parameters. Cost: sum_l m_l^2 kernel evaluations.
        """
        found = []
        for axis in range(len(self.parts)):
            if grid.circular(axis):
                found.append(self.circulant(grid, axis))
                continue
            points = grid.embedded(axis)
            found.append(self.matrix(axis, points, points))
        found[0] = found[0] * self.scale(found[0])
        return found

    def matrix(self, axis: int, rows: Tensor, columns: Tensor) -> Tensor:
        """k_l (r, c) between embedded points (r, d) and (c, d) of one axis, without the scale.

        Memory: a few r c doubles.
        """
        first = rows.double()
        second = first if rows is columns else columns.double()
        shape = (len(rows), len(columns))
        return self._along(axis, methodcaller("evaluate", first, second), rows, shape)

    def _along(
        self, axis: int, values: Callable[[Kernel], Tensor], like: Tensor, shape: Sequence[int]
    ) -> Tensor:
        """Product of ``values`` of the kernels of an axis, without the scale; ones if it has none.

        Evaluated in float64 whatever the dtype of the model: squared distances from a matrix
        product lose digits on axes of many lengthscales, and a factor that is off by 1e-2 in
        float32 may have lost its positive eigenvalues.
        """
        parts = self.parts[axis]
        if not parts:
            return like.new_ones(shape)

        def value(kernel: Kernel, whole: bool) -> Tensor:
            here = values(kernel)
            return here if whole else here / cast(Stationary, kernel).outputscale

        found = reduce(torch.mul, (in_double(kernel, value, whole) for kernel, whole in parts))
        dtypes = [p.dtype for kernel, _ in parts for p in kernel.parameters()]
        return found.to(reduce(torch.promote_types, dtypes, like.dtype))

    def set_lengthscale(self, axis: int, column: int, value: float) -> None:
        """Set the lengthscale of the stationary kernels along an axis of one input column.

        Not that of periodic kernels, which has the unit of angles, and not one that is fixed.
        """
        for kernel, _ in self.parts[axis]:
            assert isinstance(kernel, Stationary)
            if not kernel.lengthscale_in_unit_of_x or not is_trained(kernel, "lengthscale"):
                continue
            found = kernel.lengthscale.detach().clone()
            if found.numel() == 1:
                found.fill_(value)
            else:
                seen = None if kernel.active_dims is None else kernel.active_dims.tolist()
                found[column if seen is None else seen.index(column)] = value
            kernel.lengthscale = found

    def circulant(self, grid: CartesianGrid, axis: int, times: int | None = None) -> Tensor:
        """First column (a,) of k_l on the circle of an axis, without the scale.

        Args:
            times: for a circle of at least so many times the axis; None: that of the grid.
        """
        points = grid.axes[axis].squeeze(1)
        size = points.shape[0] if times is None else fast_length(times * grid.inner[axis])
        return circulant_column(
            self.covariance_at_lags(grid, axis, circle_lags(points, size)), size
        )

    def covariance_at_lags(self, grid: CartesianGrid, axis: int, lags: Tensor) -> Tensor:
        """k_l at distances (k,) along a stationary axis of one column, without the scale."""
        ends = grid.embedded(axis, lags.unsqueeze(1)).double()
        start = torch.zeros_like(ends)
        # by pairs: squared distances in a matrix lose digits on long axes
        return self._along(axis, methodcaller("pairs", start, ends), lags, lags.shape)

    def stationary(self, axis: int) -> bool:
        """Whether the covariance along an axis depends on the distance only."""
        return all(isinstance(kernel, Stationary) for kernel, _ in self.parts[axis])

    def diagonals(self, grid: CartesianGrid, points: Sequence[Tensor]) -> list[Tensor]:
        """Per axis k_l(p, p) (q_l,); the first includes the scale."""
        found = []
        for axis, place in enumerate(points):
            rows = grid.embedded(axis, place).double()
            found.append(self._along(axis, methodcaller("diagonal", rows), place, (len(rows),)))
        found[0] = found[0] * self.scale(found[0])
        return found


def split_kernel(
    kernel: Kernel, groups: Sequence[Sequence[int]], prior_scale: Tensor | None = None
) -> AxisKernels:
    """Write a kernel as a product over groups of columns.

    Products and scalings are split; an RBF (or periodic kernel) over several groups is the product
    of RBFs over each; a kernel on columns of a single group belongs to that group.

    Raises:
        ConfigError: a part does not factor over the groups.

    Source: Evans thesis, section 3.2 (requirement on the kernel).
    """
    multiplied = list(factors(kernel))
    scales = [(part, name) for part, name in multiplied if name is not None]
    found = AxisKernels(scales, [[] for _ in groups], prior_scale)
    width = sum(map(len, groups))
    for part in (part for part, name in multiplied if name is None):
        columns = sorted(_columns(part, width))
        touched = [i for i, g in enumerate(groups) if any(c in g for c in columns)]
        beyond = [c for c in columns if c >= width]
        if beyond:
            raise ConfigError(
                f"kernel {part.name} looks at column {beyond[0]}, the data have {width}"
            )
        if len(touched) < 2:  # a sum of constants looks at no column
            found.parts[touched[0] if touched else 0].append((part, True))
        elif computes_as(part, RBF, Periodic):
            found.scales.append((part, "outputscale"))
            for axis in touched:
                found.parts[axis].append((part, False))
        else:
            raise ConfigError(
                f"kernel {part.name} looks at columns {columns}, which lie on "
                f"{len(touched)} axes of the grid, and does not factor over them; take "
                "kernel=RBF() (it factors), a product over axes such as "
                "kernel=AxisProduct(family=matern32), or make the "
                "columns one axis with axes=[[0,1],[2]]"
            )
    return found


def _columns(kernel: Kernel, width: int) -> set[int]:
    """Columns, of ``width``, that a kernel looks at: those of all parts of a combination."""
    found: set[int] = set()
    for leaf in leaves(kernel):
        if not computes_as(leaf, Constant):
            active = leaf.active_dims
            found.update(range(width) if active is None else active.tolist())
    return found
