"""Data that arrive in pieces, of which only sums per grid cell are stored."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.ski.cells import CellSums
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.model import POSTERIOR_TRACE, SKI
from gpx.methods.ski.posterior import SKIPosterior
from gpx.tensor_checks import check_inputs, check_targets


class SKIStream:
    """Structured interpolation of a stream of rows, which are not stored.

    Args:
        model: with a grid placed (``initialise``) over all rows to come, fixed hyperparameters and
            mean function, and no projection.

    Raises:
        ConfigError: a grid that is not placed, a projection, or additive grids.

    Cost: ``add_rows`` O(b q^2) for b rows and q = 4^d, plus the number of cells with data;
    ``condition`` as that of the model. Neither depends on the number of rows added before.
    """

    def __init__(self, model: SKI) -> None:
        if model.additive:
            raise ConfigError(
                "a stream keeps sums by grid cell, and additive grids have none; use additive=False"
            )
        if model.projection is not None:
            raise ConfigError(
                "a stream keeps sums on one grid, and a projection moves it; use a model without "
                "projection on the projected inputs"
            )
        self.model, self.grid = model, model.grid
        self.sums: CellSums | None = None

    @torch.no_grad()
    def add_rows(self, x: Tensor, y: Tensor) -> None:
        """Add data x (b, d), y (b,).

        Raises:
            DataError: an input outside the grid.
            ShapeError, DTypeError: as for ``SKI.condition``.
        """
        check_inputs(self.model, x, None)
        check_targets(self.model, x, y, 1)
        residual = (y - self.model.mean(x)).double()
        more = CellSums.of(self.grid.weights(x), residual)
        self.sums = more if self.sums is None else self.sums + more

    def condition(self) -> SKIPosterior:
        """The posterior given all rows added so far.

        Raises:
            ConfigError: no rows were added.
            DidNotConverge: as for ``SKI.condition``.
        """
        if self.sums is None:
            raise ConfigError("no rows were added yet: call add_rows(x, y) first")
        data = Gathered.of_sums(self.sums, self.grid.shape)
        assert data.by_cell is not None
        target, _ = data.by_cell.residuals(self.sums.projected, self.sums.squared)
        system = self.model.system_of(data, self.sums.num_data, POSTERIOR_TRACE)
        return self.model.posterior_of(system, target)
