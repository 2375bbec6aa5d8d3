"""Exact Gaussian processes on Cartesian grids with gaps."""

from gpx.methods.grid.gcv import GCV
from gpx.methods.grid.mll import GridMLL
from gpx.methods.grid.model import GridGP
from gpx.methods.grid.posterior import GridPosterior

__all__ = ["GCV", "GridGP", "GridMLL", "GridPosterior"]
