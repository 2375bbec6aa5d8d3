"""Linear algebra on tensors: factorisations and solves that report what they did."""

from gpx.linalg.cholesky import cholesky, cholesky_in_place, upper_solve
from gpx.linalg.conjugate_gradients import CGResult, UnconvergedWarning, conjugate_gradients
from gpx.linalg.known_gradient import with_gradient
from gpx.linalg.memory import available_memory
from gpx.linalg.pivoted_cholesky import PivotedCholesky, pivoted_cholesky
from gpx.linalg.report import CholeskyReport, SolveReport
from gpx.linalg.stopping import (
    AbsoluteResidual,
    EvidenceBound,
    PosteriorMeanError,
    RelativeResidual,
    StoppingRule,
)

__all__ = [
    "AbsoluteResidual",
    "CGResult",
    "CholeskyReport",
    "EvidenceBound",
    "PivotedCholesky",
    "PosteriorMeanError",
    "RelativeResidual",
    "SolveReport",
    "StoppingRule",
    "UnconvergedWarning",
    "available_memory",
    "cholesky",
    "cholesky_in_place",
    "conjugate_gradients",
    "pivoted_cholesky",
    "upper_solve",
    "with_gradient",
]
