"""Linear algebra on tensors: factorisations and solves that report what they did."""

from gpx.linalg.cholesky import cholesky, cholesky_in_place, upper_solve
from gpx.linalg.circulant_approximation import (
    chan,
    circulant_approximation,
    circulant_logdet,
    circulant_preconditioner,
    enough_wraps,
    strang,
    tyrtyshnikov,
    whittle,
)
from gpx.linalg.conjugate_gradients import CGResult, UnconvergedWarning, conjugate_gradients
from gpx.linalg.interpolation import RegularAxis, cubic_weights, interpolate, linear_weights
from gpx.linalg.known_gradient import with_gradient
from gpx.linalg.levinson import durbin, toeplitz_logdet, toeplitz_solve
from gpx.linalg.memory import available_memory
from gpx.linalg.pivoted_cholesky import PivotedCholesky, pivoted_cholesky
from gpx.linalg.prepared import Prepared
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
    "Prepared",
    "RegularAxis",
    "RelativeResidual",
    "SolveReport",
    "StoppingRule",
    "UnconvergedWarning",
    "available_memory",
    "chan",
    "cholesky",
    "cholesky_in_place",
    "circulant_approximation",
    "circulant_logdet",
    "circulant_preconditioner",
    "conjugate_gradients",
    "cubic_weights",
    "durbin",
    "enough_wraps",
    "interpolate",
    "linear_weights",
    "pivoted_cholesky",
    "strang",
    "toeplitz_logdet",
    "toeplitz_solve",
    "tyrtyshnikov",
    "upper_solve",
    "whittle",
    "with_gradient",
]
