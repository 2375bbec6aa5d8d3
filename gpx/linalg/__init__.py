"""Linear algebra on tensors: factorisations and solves that report what they did."""

from gpx.linalg.block_lanczos import BlockLanczos, block_gauss, block_radau
from gpx.linalg.chebyshev import chebyshev_logdet, enough_degree, largest_eigenvalue, log_error
from gpx.linalg.cholesky import cholesky, cholesky_in_place, upper_solve
from gpx.linalg.circulant_approximation import (
    chan,
    circulant_approximation,
    circulant_logdet,
    enough_wraps,
    strang,
    tyrtyshnikov,
    whittle,
)
from gpx.linalg.conjugate_gradients import CGResult, UnconvergedWarning, conjugate_gradients
from gpx.linalg.factor_inverse import blocked_inverse, inverse_from_factor, inverse_of_factor
from gpx.linalg.interpolation import RegularAxis, cubic_weights, interpolate, linear_weights
from gpx.linalg.khatri_rao import khatri_rao_columns
from gpx.linalg.known_gradient import with_gradient
from gpx.linalg.kronecker import (
    flatten_index,
    kronecker_logdet,
    kronecker_matmul,
    kronecker_product,
    kronecker_solve,
    kronecker_vector,
    split_index,
)
from gpx.linalg.kronecker_extremes import KroneckerExtremes, kronecker_extremes
from gpx.linalg.lanczos import Lanczos, lanczos, tridiagonal_of_cg
from gpx.linalg.levinson import durbin, toeplitz_logdet, toeplitz_solve
from gpx.linalg.memory import (
    allowed_memory,
    available_memory,
    budget_in_bytes,
    halved_until_it_fits,
    memory_for_all,
    require_memory,
    total_memory,
)
from gpx.linalg.pivoted_cholesky import PivotedCholesky, pivoted_cholesky
from gpx.linalg.preconditioners import (
    Capacitance,
    CirculantPreconditioner,
    GridLowRankPlusNoise,
    Jacobi,
    LowRankPlusNoise,
    Preconditioner,
    ProductsPlusNoise,
    Woodbury,
    circulant_preconditioner,
    missing_grid_preconditioner,
    nystrom_preconditioner,
    observed_grid_preconditioner,
)
from gpx.linalg.prepared import Prepared
from gpx.linalg.quadrature import gauss, gauss_radau
from gpx.linalg.random_pivots import randomly_pivoted_cholesky
from gpx.linalg.report import CholeskyReport, SolveReport
from gpx.linalg.running_sum import kth_smallest, running_sum
from gpx.linalg.stochastic_lanczos_quadrature import (
    QuadratureEstimate,
    logdet_quadrature,
    quadrature_of_solve,
    stochastic_lanczos_quadrature,
)
from gpx.linalg.stopping import (
    AbsoluteResidual,
    EvidenceBound,
    PosteriorMeanError,
    RelativeResidual,
    StoppingRule,
)
from gpx.linalg.trace import Estimate, probe_vectors

__all__ = [
    "AbsoluteResidual",
    "BlockLanczos",
    "CGResult",
    "Capacitance",
    "CholeskyReport",
    "CirculantPreconditioner",
    "Estimate",
    "EvidenceBound",
    "GridLowRankPlusNoise",
    "Jacobi",
    "KroneckerExtremes",
    "Lanczos",
    "LowRankPlusNoise",
    "PivotedCholesky",
    "PosteriorMeanError",
    "Preconditioner",
    "Prepared",
    "ProductsPlusNoise",
    "QuadratureEstimate",
    "RegularAxis",
    "RelativeResidual",
    "SolveReport",
    "StoppingRule",
    "UnconvergedWarning",
    "Woodbury",
    "allowed_memory",
    "available_memory",
    "block_gauss",
    "block_radau",
    "blocked_inverse",
    "budget_in_bytes",
    "chan",
    "chebyshev_logdet",
    "cholesky",
    "cholesky_in_place",
    "circulant_approximation",
    "circulant_logdet",
    "circulant_preconditioner",
    "conjugate_gradients",
    "cubic_weights",
    "durbin",
    "enough_degree",
    "enough_wraps",
    "flatten_index",
    "gauss",
    "gauss_radau",
    "halved_until_it_fits",
    "interpolate",
    "inverse_from_factor",
    "inverse_of_factor",
    "khatri_rao_columns",
    "kronecker_extremes",
    "kronecker_logdet",
    "kronecker_matmul",
    "kronecker_product",
    "kronecker_solve",
    "kronecker_vector",
    "kth_smallest",
    "lanczos",
    "largest_eigenvalue",
    "linear_weights",
    "log_error",
    "logdet_quadrature",
    "memory_for_all",
    "missing_grid_preconditioner",
    "nystrom_preconditioner",
    "observed_grid_preconditioner",
    "pivoted_cholesky",
    "probe_vectors",
    "quadrature_of_solve",
    "randomly_pivoted_cholesky",
    "require_memory",
    "running_sum",
    "split_index",
    "stochastic_lanczos_quadrature",
    "strang",
    "toeplitz_logdet",
    "toeplitz_solve",
    "total_memory",
    "tridiagonal_of_cg",
    "tyrtyshnikov",
    "upper_solve",
    "whittle",
    "with_gradient",
]
