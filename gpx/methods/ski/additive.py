"""Additive structured interpolation: one axis, one kernel and one grid per term.

k(x, z) = sum_l k_l(x_l, z_l) is W K W^T with concatenated weights W = [W_1, W_2, ...] and block
diagonal K, one Toeplitz matrix per axis. The number of grid points is a sum over axes, not a
product, so that there may be more than three axes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.constraints import positive_parameters
from gpx.errors import ConfigError
from gpx.kernels import Product, Scale, Sum
from gpx.kernels.base import Kernel
from gpx.kernels.structure import leaves
from gpx.linalg import RegularAxis
from gpx.linalg.interpolation import Outside
from gpx.methods.ski.covariance import (
    GridCovariance,
    LagCovariance,
    grid_covariance,
    kernel_at_lags,
)
from gpx.methods.ski.grid import (
    DEFAULT_POINTS_PER_ROW,
    MARGIN_CELLS,
    InterpolationGrid,
    axis_sizes,
    grid_sizes,
)
from gpx.methods.ski.low_rank import PivotedPart
from gpx.operators import Interpolation
from gpx.operators.structured import Structured, as_columns

DEFAULT_MAX_AXIS_POINTS = 1000
"""Largest default number of points of an axis."""


class AdditiveGrid(InterpolationGrid):
    """A separate one-dimensional grid for each axis."""

    has_cells: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """m, the sum of the points of all axes."""
        return sum(self.shape)

    @property
    def row_weights(self) -> int:
        """Entries of a row of W."""
        return (4 if self.method == "cubic" else 2) * len(self.axes)

    def weights(self, x: Tensor, outside: Outside = "error") -> Interpolation:
        """W (n, m) with 4 or 2 entries per row and axis."""
        places, shares, start = [], [], 0
        for (place, share), m in zip(self.axis_weights(x, outside), self.shape, strict=True):
            places.append(place + start)
            shares.append(share)
            start += m
        return Interpolation(torch.cat(shares, 1), torch.cat(places, 1), num_columns=self.size)

    def single(self, axis: int) -> InterpolationGrid:
        """The grid of one axis."""
        return InterpolationGrid((self.axes[axis],), self.method, self.boundary)


class AdditiveCovariance(GridCovariance):
    """One Toeplitz matrix per axis, block diagonal.

    Args:
        blocks: one per axis.
    """

    def __init__(self, blocks: list[LagCovariance]) -> None:
        self.blocks = blocks
        self.tensors = tuple(block.tensors[0] for block in blocks)
        self.operator = BlockDiagonal(*[block.operator for block in blocks])
        self.variance = torch.stack([block.variance for block in blocks]).sum()

    @classmethod
    def of(cls, grid: AdditiveGrid, kernel: Kernel, device: torch.device) -> AdditiveCovariance:
        """The covariance of a sum kernel with one part per axis; float64."""
        assert isinstance(kernel, Sum)
        blocks = []
        for i, (axis, part) in enumerate(zip(grid.axes, kernel.parts, strict=True)):
            assert isinstance(axis, RegularAxis)
            tau = torch.zeros(axis.size, len(grid.axes), dtype=torch.float64, device=device)
            tau[:, i] = axis.steps(tau)
            blocks.append(LagCovariance(grid.single(i), kernel_at_lags(part)(tau)))
        return cls(blocks)

    def low_rank(
        self, rank: int, tolerance: float, most_pivots: int, waves: int = 0
    ) -> PivotedPart:
        """As in ``GridCovariance``, with the pivots of each axis in a block of their own.

        Rank and tolerance are divided equally among the axes. A row has weights on every axis, so
        the error of its variance is the sum over axes of trace error / points of that axis, which
        is at most ``tolerance / points`` of all axes together, as for one block.
        """
        points = sum(len(b.tensors[0]) for b in self.blocks)
        share = tolerance / (len(self.blocks) * points)
        each = max(1, min(rank, most_pivots) // len(self.blocks))
        found = [
            PivotedPart.of(lags, b.grid, each, share * len(lags))
            for b in self.blocks
            for lags in (b.tensors[0].detach(),)
        ]
        factor = torch.block_diag(*[part.factor for part in found])
        joined = PivotedPart(factor, torch.stack([part.missing for part in found]).sum())
        joined.complete = all(part.complete for part in found)
        return joined

    def detached(self) -> LinearOperator:
        """As in ``GridCovariance``."""
        return BlockDiagonal(*[block.detached() for block in self.blocks])


class BlockDiagonal(Structured):
    """A block diagonal matrix of square blocks, without batches."""

    def __init__(self, *blocks: LinearOperator) -> None:
        super().__init__(*blocks)
        self.blocks = blocks
        self.sizes = [block.shape[-1] for block in blocks]

    def _size(self) -> torch.Size:
        return torch.Size((sum(self.sizes), sum(self.sizes)))

    def _transpose_nonbatch(self) -> BlockDiagonal:
        return BlockDiagonal(*[block.mT for block in self.blocks])

    def _multiply(self, right: Tensor) -> Tensor:
        parts = right.split(self.sizes, -2)
        found = [b._matmul(p) for b, p in zip(self.blocks, parts, strict=True)]
        return torch.cat(found, -2)

    def _t_multiply(self, right: Tensor) -> Tensor:
        parts = right.split(self.sizes, -2)
        found = [b._t_matmul(p) for b, p in zip(self.blocks, parts, strict=True)]
        return torch.cat(found, -2)

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Any, ...]:
        left, right = as_columns(left_vecs, right_vecs)
        pairs = zip(left.split(self.sizes, -2), right.split(self.sizes, -2), strict=True)
        found: tuple[Any, ...] = ()
        for block, (own, other) in zip(self.blocks, pairs, strict=True):
            found += block._bilinear_derivative(own, other)
        return found

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        row, column = torch.broadcast_tensors(row_index, col_index)
        found = torch.zeros(row.shape, dtype=self.dtype, device=self.device)
        start = 0
        for block, size in zip(self.blocks, self.sizes, strict=True):
            inside = (row >= start) & (row < start + size)
            inside &= (column >= start) & (column < start + size)
            found[inside] = block._get_indices(row[inside] - start, column[inside] - start)
            start += size
        return found


def covariance_on(grid: InterpolationGrid, kernel: Kernel, device: torch.device) -> GridCovariance:
    """K_UU for an ordinary or an additive grid; see ``grid_covariance``."""
    if isinstance(grid, AdditiveGrid):
        return AdditiveCovariance.of(grid, kernel, device)
    return grid_covariance(grid, kernel, device)


def additive_sizes(sizes: int | Sequence[int] | None, num_data: int, num_inputs: int) -> list[int]:
    """Number of points of each axis, as given or from the number of data rows.

    Raises:
        ConfigError: a wrong number of axes, or too few points.
    """
    if sizes is None:
        sizes = max(
            2 * MARGIN_CELLS + 6, min(DEFAULT_POINTS_PER_ROW * num_data, DEFAULT_MAX_AXIS_POINTS)
        )
    given = [sizes] * num_inputs if isinstance(sizes, int) else sizes
    return [grid_sizes([size], num_data, 1)[0] for size in axis_sizes(given, num_inputs)]


def additive_kernel(kernel: Kernel, num_inputs: int) -> Sum:
    """The sum of copies of a one-input kernel, one per input, with the same total variance.

    Each copy is divided through a learned scale of its own; one without gets a learned ``Scale``.
    A sum of one kernel for each input is taken as it is, in the order of the inputs.

    Raises:
        ConfigError: another kernel of more than one input.
    """
    if (own := _per_input(kernel, num_inputs)) is not None:
        return own
    inside = [part for part in kernel.modules() if isinstance(part, Kernel)]
    lengthscales = [getattr(part, "lengthscale", None) for part in inside]
    several = any(each is not None and each.numel() > 1 for each in lengthscales)
    columns = {c for p in inside if p.active_dims is not None for c in p.active_dims.tolist()}
    if several or kernel.active_dims is not None or columns - {0} or isinstance(kernel, Sum):
        raise ConfigError(
            "additive=True copies a kernel of one input for every axis: give one that is no sum, "
            "with a single lengthscale (ard_num_dims=None) and no active_dims; or a sum of one "
            "kernel for each input, as RBF(active_dims=[0]) + RBF(active_dims=[1])"
        )
    parts = []
    for i in range(num_inputs):
        part = copy.deepcopy(kernel)
        _set_column(part, i)
        divided = _divide(part, num_inputs)
        parts.append(part if divided else Scale(part, 1.0 / num_inputs))
    return Sum(parts)


def _per_input(kernel: Kernel, num_inputs: int) -> Sum | None:
    """The parts of a sum in the order of their inputs, if each input has one part; else None."""
    if not isinstance(kernel, Sum) or kernel.active_dims is not None:
        return None
    parts = {}
    for part in kernel.parts:
        dims = [leaf.active_dims for leaf in leaves(part)]
        columns = {tuple(d.tolist()) if d is not None else () for d in dims}
        if len(columns) != 1 or len(column := columns.pop()) != 1:
            return None
        parts[column[0]] = part
    complete = len(kernel.parts) == num_inputs and parts.keys() == set(range(num_inputs))
    return Sum([parts[i] for i in range(num_inputs)]) if complete else None


def with_scales(state: dict[str, Any], prefix: str, kernel: Kernel) -> None:
    """Complete the state of a sum that was stored when copies without a learned scale had none.

    Their scale was one, and stays so.

    Args:
        state: changed in place.
        prefix: of the kernel's entries.
        kernel: of ``additive_kernel``.
    """
    for i, part in enumerate(kernel.kernels if isinstance(kernel, Sum) else []):
        own = f"{prefix}kernels.{i}."
        if not isinstance(part, Scale) or any(name.startswith(f"{own}kernel.") for name in state):
            continue
        for name in [name for name in state if name.startswith(own)]:
            state[f"{own}kernel.{name.removeprefix(own)}"] = state.pop(name)
        for scale in positive_parameters(part, below=False):
            state[f"{own}parametrizations.{scale.name}.original"] = scale.constraint.right_inverse(
                torch.ones_like(scale.raw)
            ).detach()


def _set_column(kernel: Kernel, column: int) -> None:
    """Make a kernel of one input look at ``column``.

    Within sums, products and multiples each part selects its own columns.
    """
    for leaf in leaves(kernel):
        del leaf.active_dims
        leaf.register_buffer("active_dims", torch.tensor([column]), persistent=False)


def _divide(kernel: Kernel, count: int) -> bool:
    """Divide a kernel by ``count`` through its own learned scale; False: it has none."""
    name = "scale" if isinstance(kernel, Scale) else "outputscale"
    if name in getattr(kernel, "parametrizations", ()):
        setattr(kernel, name, getattr(kernel, name).detach() / count)
        return True
    return isinstance(kernel, Product) and any(_divide(part, count) for part in kernel.parts)
