"""Interpolation on a regular grid as basis functions, for any kernel."""

from __future__ import annotations

import warnings
from typing import Literal, NoReturn, get_args

import torch
from torch import Tensor

from gpx.bases.base import Basis, Spent, check_inputs, never
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError, ShapeError
from gpx.kernels.base import Kernel
from gpx.linalg.interpolation import Method, Outside, RegularAxis
from gpx.operators import Interpolation
from gpx.tensor_checks import check_one_of
from gpx.warned_line import users_line

MARGIN = 2
"""Cells between the data and the ends of an axis, so that cubic stencils stay on the axis."""
MIN_POINTS = 2 * MARGIN + 2
"""Smallest number of points of an axis."""

Beyond = Literal["clamp", "error"]


class InterpolatedGrid(InDoublePrecision, Basis):
    """f(x) = w(x)^T u with sparse interpolation weights w and u ~ N(0, K), K the kernel on a grid.

    The weights do not depend on the kernel, so that the sums W^T W and W^T y over the data serve
    every kernel, stationary or not. Adding or removing a row costs 4^(2 d) additions, and
    ``Reweighted`` learns the kernel from the sums at a cost independent of n.

    Args:
        kernel: any.
        num_basis: largest number of grid points m, which is a d-th power.
        num_inputs: d.
        interpolation: ``cubic`` (4 points an axis) or ``linear`` (2).
        outside: for predictions beyond the grid: ``clamp`` to its edge, with a warning, or
            ``error``. Rows added after the first ones must lie within the grid.

    Attributes:
        origin (d,), spacing (d,): of the grid's axes.

    Raises:
        ConfigError: fewer than six points an axis, or an unknown option.

    Cost: sums over the data O(n 4^(2 d)) time; m^2 kernel entries whenever the kernel moves.
    Source: Evans thesis, section 5.3.3; Wilson and Nickisch 2015.
    """

    follows_kernel = True
    dense_prior = True
    in_double = ("origin", "spacing")  # rounding would move the grid points
    kernel: Kernel
    num_inputs: int
    origin: Tensor
    spacing: Tensor

    def __init__(
        self,
        kernel: Kernel,
        num_basis: int,
        num_inputs: int,
        interpolation: Method = "cubic",
        outside: Beyond = "clamp",
    ) -> None:
        super().__init__()
        size = round(max(num_basis, 0) ** (1.0 / num_inputs))
        size -= size**num_inputs > num_basis
        if size < MIN_POINTS:
            raise ConfigError(
                f"num_basis={num_basis} makes a grid of {size} points an axis for {num_inputs} "
                f"inputs; interpolation needs {MIN_POINTS}, num_basis="
                f"{MIN_POINTS**num_inputs}, and suits up to 3 inputs"
            )
        check_one_of(get_args(Method), interpolation=interpolation)
        check_one_of(get_args(Beyond), outside=outside)
        self.kernel = kernel
        self.size, self.num_inputs, self.num_basis = size, num_inputs, size**num_inputs
        self.interpolation: Method = interpolation
        self.outside: Beyond = outside
        self.register_buffer("origin", torch.zeros(num_inputs, dtype=torch.float64))
        self.register_buffer("spacing", torch.ones(num_inputs, dtype=torch.float64))

    @property
    def axes(self) -> list[RegularAxis]:
        """One per input column."""
        places = zip(self.origin.tolist(), self.spacing.tolist(), strict=True)
        return [RegularAxis(origin, spacing, self.size) for origin, spacing in places]

    @torch.no_grad()
    def place(self, x: Tensor) -> None:
        """Place the grid over the inputs x (n, d), with a margin of two cells."""
        low, high = x.double().amin(0), x.double().amax(0)
        axes = [
            RegularAxis.covering(a, b, self.size, margin=MARGIN)
            for a, b in zip(low.tolist(), high.tolist(), strict=True)
        ]
        self.origin = low.new_tensor([axis.start for axis in axes])
        self.spacing = low.new_tensor([axis.spacing for axis in axes])

    def start(
        self,
        x: Tensor,
        residual: Tensor,
        noise: Tensor,
        *,
        generator: torch.Generator,
        spent: Spent = never,
    ) -> str:
        """As in ``Basis``."""
        self.place(x)
        return f"grid {' x '.join([str(self.size)] * self.num_inputs)}"

    def _weights(self, x: Tensor, outside: Outside) -> Interpolation:
        check_inputs(x, "InterpolatedGrid")
        if x.shape[1] != self.num_inputs:
            raise ShapeError(
                f"InterpolatedGrid is made for {self.num_inputs} inputs, got {x.shape[1]} columns"
            )
        method = self.interpolation
        return Interpolation.of(
            x.double(), self.axes, method=method, boundary="keys", outside=outside
        )

    def sparse_rows(self, x: Tensor) -> Interpolation:
        """W (n, m), float64, at training inputs x (n, d).

        Raises:
            DataError: some lie beyond the grid.
        """
        return self._weights(x, "error")

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """As in ``Basis``: at most 4^d non-zero weights per row, independent of the kernel."""
        weights = self._weights(x, self.outside)
        found = x.new_zeros(len(x), self.num_basis)
        found.scatter_add_(1, weights.indices, weights.values.to(x.dtype))
        if self.outside == "clamp":
            self._warn_of_outsiders(x)
        return found if columns is None else found[:, columns]

    def _warn_of_outsiders(self, x: Tensor) -> None:
        place = (x.double() - self.origin) / self.spacing
        beyond = int(((place < -1e-9) | (place > self.size - 1 + 1e-9)).any(1).sum())
        if beyond:
            warnings.warn(
                f"{beyond} of {len(x)} inputs lie outside the interpolation grid and are moved to "
                "its edge; train on data that reach as far",
                stacklevel=users_line(),
            )

    def points(self) -> Tensor:
        """The grid points (m, d), the last axis fastest; float64."""
        axes = [axis.points(self.origin) for axis in self.axes]
        return torch.cartesian_prod(*axes).view(self.num_basis, self.num_inputs)

    def prior_covariance(self) -> Tensor:
        """K (m, m) of the kernel on the grid, float64, differentiable in the kernel."""
        like = next(self.kernel.parameters(), self.origin)
        return self.kernel.evaluate(self.points().to(like.dtype)).double()

    def precision_diagonal(self, columns: Tensor | None = None) -> NoReturn:
        """Always raises ConfigError: the prior is not diagonal."""
        raise ConfigError(
            "values on an interpolation grid are correlated a priori, so their precision is not "
            "diagonal; use Reweighted, or random Fourier features for QSGP"
        )

    def mean_column_square(self) -> Tensor:
        """A reference for w_r(x)^2: 1 / m, a row's weight spread over all columns; 0-d."""
        return self.origin.new_tensor(1.0 / self.num_basis)
