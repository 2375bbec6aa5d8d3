"""Preconditioners: cheap approximate inverses that also know their determinant and root."""

from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.preconditioners.diagonal import Jacobi
from gpx.linalg.preconditioners.grid import (
    missing_grid_preconditioner,
    observed_grid_preconditioner,
)
from gpx.linalg.preconditioners.grid_low_rank import GridLowRankPlusNoise
from gpx.linalg.preconditioners.low_rank import (
    Capacitance,
    LowRankPlusNoise,
    ProductsPlusNoise,
    Woodbury,
    nystrom_preconditioner,
)
from gpx.linalg.preconditioners.of_operator import OperatorPreconditioner

__all__ = [
    "Capacitance",
    "GridLowRankPlusNoise",
    "Jacobi",
    "LowRankPlusNoise",
    "OperatorPreconditioner",
    "Preconditioner",
    "ProductsPlusNoise",
    "Woodbury",
    "missing_grid_preconditioner",
    "nystrom_preconditioner",
    "observed_grid_preconditioner",
]
