"""Linear algebra on tensors: factorisations and solves that report what they did."""

from gpx.linalg.cholesky import cholesky
from gpx.linalg.pivoted_cholesky import PivotedCholesky, pivoted_cholesky
from gpx.linalg.report import CholeskyReport, SolveReport

__all__ = ["CholeskyReport", "PivotedCholesky", "SolveReport", "cholesky", "pivoted_cholesky"]
