"""Interpolated product kernels of any number of inputs, entry by entry and without a grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from gpx.backends.entries import at_precision_of
from gpx.bases.grid_eigenfunctions.factors import ProductFactors
from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels.base import Kernel
from gpx.linalg import RegularAxis
from gpx.linalg.interpolation import Boundary, Method, axis_weights
from gpx.tensor_checks import check_one_of, check_whole


class InterpolatedProduct(Kernel):
    """E K_UU E^T for k(x, z) = s prod_i k_i(x_i, z_i), as s prod_i e_i(x_i)^T K_i e_i(z_i).

    The covariance that ``SKI`` has on the grid U of all axes' points. A row of E is the Kronecker
    product of the weights e_i on the points of each axis, so that an entry takes the axes one by
    one, and the grid of m_1 ... m_d points is never laid out: for interpolation in more inputs than
    ``SKI`` takes. An ordinary kernel otherwise, as of ``ExactGP(solver="iterative")``.

    Args:
        kernel: a product of one-dimensional kernels, see ``ProductFactors``; its hyperparameters
            are learned.
        axes: of every input the first and the last point, and how many there are, equidistant.
            Inputs must lie between them.
        interpolation: "cubic" (4 points of each axis) or "linear" (2).
        boundary: cubic weights in the end cells of an axis; see ``gpx.linalg.interpolate``.

    Cost: O(n (n + m_i) m_i) for a matrix of n rows and each input, linear in d; memory O(n m_i)
    beside the matrix.

    Raises:
        ConfigError: the kernel does not factor over the inputs, or an axis is too short. Evaluated
            at inputs beyond an axis: DataError; of another width: ShapeError.

    Source: Evans thesis, section 4.3.4.
    """

    def __init__(
        self,
        kernel: Kernel,
        axes: Sequence[tuple[float, float, int]],
        interpolation: Method = "cubic",
        boundary: Boundary = "keys",
    ) -> None:
        super().__init__()
        check_one_of(("cubic", "linear"), interpolation=interpolation)
        check_one_of(("margin", "keys", "nearest"), boundary=boundary)
        if not axes:
            raise ConfigError(
                "axes=[]: give the first and the last point of every input, and how many there are"
            )
        self.kernel = kernel
        self.axes = [_axis(place, *each) for place, each in enumerate(axes)]
        self.interpolation: Method = interpolation
        self.boundary: Boundary = boundary
        ProductFactors(kernel, len(self.axes))  # fails early

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        factors, left = self._prepared(x1)
        right = left if x2 is x1 else self._prepared(x2)[1]
        each = [
            rows @ matrix @ columns.mT
            for rows, matrix, columns in zip(left, self._matrices(factors, x1), right, strict=True)
        ]
        return factors.outputscale * reduce(torch.mul, each)

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``; between points below k(x, x), which interpolation does not reach."""
        factors, weights = self._prepared(x)
        each = [
            ((rows @ matrix) * rows).sum(1)
            for rows, matrix in zip(weights, self._matrices(factors, x), strict=True)
        ]
        return factors.outputscale * reduce(torch.mul, each)

    def _prepared(self, x: Tensor) -> tuple[ProductFactors, list[Tensor]]:
        """The factors of the kernel, and of every axis the weights (n, m_i) of the rows of x."""
        if x.shape[1] != len(self.axes):
            raise ShapeError(
                f"axes are given for {len(self.axes)} inputs and x has {x.shape[1]} columns"
            )
        weights = []
        for place, (column, axis) in enumerate(zip(x.unbind(1), self.axes, strict=True)):
            try:
                places, values = axis_weights(
                    column, axis, method=self.interpolation, boundary=self.boundary
                )
            except DataError as error:
                last = axis.start + axis.spacing * (axis.size - 1)
                raise DataError(
                    f"axis {place}, from {axis.start:g} to {last:g}, does not hold all inputs: lay "
                    "axes over all rows, those to be predicted too"
                ) from error
            empty = values.new_zeros(len(column), len(axis))
            weights.append(empty.scatter_add(1, places, values))
        return ProductFactors(self.kernel, len(self.axes)), weights

    def _matrices(self, factors: ProductFactors, like: Tensor) -> list[Tensor]:
        """K_i (m_i, m_i) of the points of every axis."""
        longest = max(len(axis) for axis in self.axes)
        points = [axis.start + axis.spacing * torch.arange(longest).to(like) for axis in self.axes]
        nodes = torch.stack(points)
        found = at_precision_of(like, self.kernel, lambda _: factors.evaluate(nodes, nodes.mT))
        return [
            matrix[: len(axis), : len(axis)]
            for matrix, axis in zip(found.unbind(0), self.axes, strict=True)
        ]


def _axis(place: int, first: float, last: float, size: int) -> RegularAxis:
    """The axis of one input; ConfigError if it has fewer than four points, or no length."""
    check_whole(size=size)
    if size < 4 or not first < last:
        raise ConfigError(
            f"axis {place} has {size} points from {first:g} to {last:g}: take four or more, and a "
            "last point above the first"
        )
    return RegularAxis(float(first), (last - first) / (size - 1), int(size))
