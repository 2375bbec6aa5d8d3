"""Preconditioners: cheap approximate inverses that also know their determinant and root."""

from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.preconditioners.circulant import (
    CirculantPreconditioner,
    circulant_preconditioner,
)
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

__all__ = [
    "Capacitance",
    "CirculantPreconditioner",
    "GridLowRankPlusNoise",
    "Jacobi",
    "LowRankPlusNoise",
    "Preconditioner",
    "ProductsPlusNoise",
    "Woodbury",
    "circulant_preconditioner",
    "missing_grid_preconditioner",
    "nystrom_preconditioner",
    "observed_grid_preconditioner",
]
