"""Eigenfunctions of a kernel on a product grid that is never formed."""

from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.bases.grid_eigenfunctions.interpolation import GridInterpolation

__all__ = [
    "GridEigenfunctions",
    "GridInterpolation",
    "GridModes",
    "GridOptions",
]
