"""Data that come in pieces: sums by grid cell are all that is kept of them."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.ski.cells import CellSums
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.model import COMPLETE, SKI
from gpx.methods.ski.posterior import SKIPosterior
from gpx.tensor_checks import check_inputs, check_targets


class SKIStream:
    """Structured interpolation of rows that are forgotten once they are added.

    Args:
        model: with its grid placed (``initialise``) where all rows are to come, and the
            hyperparameters and mean function that residuals are taken with; no projection.

    Raises:
        ConfigError: a grid that is not placed, a projection, or additive grids.

    Cost: ``add_rows`` O(b q^2) for b rows and q = 4^d, and the cells with data once; ``condition``
    as that of the model without its rows. Nothing grows with the number of rows that were added.
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
        """Take in further data x (b, d), y (b,).

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
        """The posterior given all rows that were added.

        Raises:
            ConfigError: none were.
            DidNotConverge: as for ``SKI.condition``.
        """
        if self.sums is None:
            raise ConfigError("no rows were added yet: call add_rows(x, y) first")
        data = Gathered.of_sums(self.sums, self.grid.shape)
        assert data.by_cell is not None
        target, _ = data.by_cell.residuals(self.sums.projected, self.sums.squared)
        system = self.model.system_of(data, self.sums.num_data, COMPLETE)
        return self.model.posterior_of(system, target)
