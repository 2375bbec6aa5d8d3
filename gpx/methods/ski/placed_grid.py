"""The position of a grid in buffers, for models and posteriors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg.interpolation import Boundary, Method
from gpx.methods.ski.additive import AdditiveGrid, with_scales
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.lengthscales import bound_lengthscales
from gpx.methods.ski.projection import Projection


class PlacedGrid(InDoublePrecision):
    """Float64 buffers with the position of a grid, and the grid that they describe.

    Attributes:
        start (d,), spacing (d,), sizes (d,): first point, spacing, number of points of each axis.
        points: of all axes, concatenated, if they are not equidistant; otherwise empty.
        floors (k,): smallest lengthscales, see ``spacing_floors``; empty: none.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("start", "spacing", "sizes", "points", "floors")
    later: ClassVar[tuple[str, ...]] = ("points", "floors")
    """Buffers that older stored states lack."""
    kernel: Kernel
    projection: Projection | None
    interpolation: Method
    boundary: Boundary
    additive: bool
    start: Tensor
    spacing: Tensor
    sizes: Tensor
    points: Tensor
    floors: Tensor

    @property
    def grid_type(self) -> type[InterpolationGrid]:
        """Class of the grid: one grid over all axes, or one per axis (additive)."""
        return AdditiveGrid if self.additive else InterpolationGrid

    @property
    def grid(self) -> InterpolationGrid:
        """The grid placed by ``SKI.initialise`` or loaded from a state.

        Raises:
            ConfigError: the grid is not placed.
        """
        if not self.sizes.numel():
            raise ConfigError(
                "the grid is not placed yet: call initialise(x, y, generator=...) first"
            )
        state = (self.start, self.spacing, self.sizes, self.points)
        return self.grid_type.of_state(*state, self.interpolation, self.boundary)

    def place(self, grid: InterpolationGrid, device: torch.device) -> None:
        """Store the position of a grid."""
        for name, value in grid.state(device).items():
            setattr(self, name, value)

    def projected(self, x: Tensor) -> Tensor:
        """Projected inputs (n, d) for x (n, D)."""
        return x if self.projection is None else self.projection(x)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.later:
            state_dict.setdefault(prefix + name, torch.zeros(0, dtype=torch.float64))
        if self.additive:
            with_scales(state_dict, f"{prefix}kernel.", self.kernel)
        if len(state_dict[prefix + "floors"]):
            bound_lengthscales(self.kernel, state_dict[prefix + "floors"], warn=False)
        super()._load_from_state_dict(state_dict, prefix, *rest)
