"""Linear algebra on tensors: factorisations and solves that report what they did."""

from gpx.linalg.cholesky import cholesky
from gpx.linalg.report import CholeskyReport, SolveReport

__all__ = ["CholeskyReport", "SolveReport", "cholesky"]
