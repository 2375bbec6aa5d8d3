"""Linear algebra on tensors: factorisations and solves that report what they did."""

from gpx.linalg.cholesky import cholesky, cholesky_in_place, upper_solve
from gpx.linalg.known_gradient import with_gradient
from gpx.linalg.memory import available_memory
from gpx.linalg.pivoted_cholesky import PivotedCholesky, pivoted_cholesky
from gpx.linalg.report import CholeskyReport, SolveReport

__all__ = [
    "CholeskyReport",
    "PivotedCholesky",
    "SolveReport",
    "available_memory",
    "cholesky",
    "cholesky_in_place",
    "pivoted_cholesky",
    "upper_solve",
    "with_gradient",
]
