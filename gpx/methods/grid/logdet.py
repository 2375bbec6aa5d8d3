"""log|K_XX + sigma^2 I| at the observed cells of a grid, by four routes, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.linalg import (
    CGResult,
    SolveReport,
    kronecker_vector,
    probe_vectors,
    quadrature_of_solve,
    require_memory,
)
from gpx.linalg.trace import mean_and_error
from gpx.methods.grid.axes import GRID_VECTORS, GriddedRows
from gpx.methods.grid.gap_preconditioners import ignore_preconditioner
from gpx.methods.grid.gaps import MAX_FILLED_SHARE, GapOptions
from gpx.methods.grid.system import (
    FactorGradient,
    GridSystem,
    blocks,
    dense_is_cheap,
    factorises_observed,
    gap_columns,
    observed_covariance,
    observed_factor,
)
from gpx.operators.circulant import FourierVectors

LogdetName = Literal["auto", "nystrom", "dense", "slq_fill", "slq_ignore"]

PROBE_VECTORS = 8
"""Upper bound on the vectors over the grid that a solve holds per probe."""

MAX_SCATTERED_CLUSTERING = 0.1
"""Largest ``GriddedRows.clustering`` of gaps that count as randomly scattered."""


class GridLogdet(NamedTuple):
    """log|K_XX + sigma^2 I| in nats, with its gradient.

    Attributes:
        value ().
        gradient: with respect to the factors and the noise variance.
        route: one of ``LogdetName`` other than "auto", or "full".
        exact: whether it is exact up to rounding.
        standard_error (): of stochastic routes, else 0.
        report: of the solves of stochastic routes.
    """

    value: Tensor
    gradient: FactorGradient
    route: str
    exact: bool
    standard_error: Tensor
    report: SolveReport | None = None


def choose_logdet(name: LogdetName, rows: GriddedRows) -> str:
    """Resolve "auto": "full" without gaps, exact if cheap, else by the pattern of the gaps."""
    if not rows.gaps.shape[0]:
        return "full"
    if name != "auto":
        return name
    if dense_is_cheap(rows.cells.shape[0], rows.gaps.shape[0]):
        return "dense"
    return "nystrom" if spectrum_is_representative(rows) else sampled_logdet(rows)


def spectrum_is_representative(rows: GriddedRows) -> bool:
    """Whether the scaled spectrum of the whole grid approximates that of the observed cells.

    It does if gaps are randomly scattered. If they form blocks, neighbouring observed cells stay as
    correlated as on the full grid, and the scaled spectrum is wrong.
    """
    return rows.clustering <= MAX_SCATTERED_CLUSTERING


def sampled_logdet(rows: GriddedRows) -> str:
    """The stochastic route for these gaps: quadrature of K_XX if most cells are missing, else of F.

    On circles at least half of the cells are missing.
    """
    share = rows.gap_share
    return "slq_ignore" if any(rows.grid.inner) or share > MAX_FILLED_SHARE else "slq_fill"


def grid_logdet(
    system: GridSystem,
    route: str,
    options: GapOptions,
    *,
    probes: int = 10,
    generator: torch.Generator | None = None,
) -> GridLogdet:
    """The log-determinant by ``route`` (``choose_logdet``).

    * full: all eigenvalues, exact. nystrom: sum over the N largest of log(N / M lambda_i +
      sigma^2), an estimate without an error bound: below one percent off at 50 % scattered gaps
      with smooth kernels, but arbitrarily wrong for gaps in blocks. For an axis that is a circle,
      the circle's eigenvalues are used, with a correction for the ends of the axis by the strong
      Szego theorem; without gaps the error decays exponentially with the length of the axis.
    * dense: exact, in float64, by factorising K_XX or, where the gaps are fewer, by the identity
      log|K_XX + sigma^2 I| = log|K + sigma^2 I| + log|F|, F = C[Z, Z].
    * slq_fill: that identity with log|F| by stochastic Lanczos quadrature (F is well conditioned);
      slq_ignore: quadrature of the preconditioned K_XX itself; both unbiased up to the quadrature.

    Cost: nystrom O(M); dense N^3 or L times five Kronecker products; quadrature a solve per probe.
    Source: Evans thesis, section 3.4; the identity follows from block inversion.
    """
    n, size = system.num_observed, system.size
    if route in ("full", "nystrom"):
        value, gradient = inner_spectral_sum(system, torch.log, torch.reciprocal)
        circles = [
            axis for axis, q in enumerate(system.spectrum.vectors) if isinstance(q, FourierVectors)
        ]
        if len(circles) == 1:
            edge, slope = szego_edge_term(system, *circles)
            value, gradient = value + edge, gradient + slope
        exact = n == size
        return GridLogdet(value, gradient, route, exact, torch.zeros_like(value))
    if route == "dense":
        smaller = factorises_observed(n, system.num_gaps)
        value, gradient = _dense_observed(system) if smaller else _dense_gaps(system)
        return GridLogdet(value, gradient, route, True, torch.zeros_like(value))
    if route == "slq_fill":
        return _slq_fill(system, options, probes, generator)
    return _slq_ignore(system, options, probes, generator)


def require_dense(
    count: int, axes: int, like: Tensor, option: str, memory_budget: int | str | None = None
) -> None:
    """Raise ConfigError if a dense route over ``count`` cells does not fit into memory.

    To be called once, before the first evaluation, as memory cached later does not count as free.
    """
    copies = axes + 4  # covariances of the axes between the cells, and four more
    require_memory(
        copies * count**2 * 8,  # in float64 whatever the dtype
        like.device,
        f"{option}=dense factorises {count:,} x {count:,} numbers and with its gradient",
        f"take {option}=auto",
        memory_budget,
    )


def require_probes(
    rows: GriddedRows, probes: int, like: Tensor, memory_budget: int | str | None = None
) -> None:
    """Raise ConfigError if the solves of a stochastic route do not fit into memory.

    To be called once, as ``require_dense``. The final evidence uses such a route, or is exact.
    """
    observed, gaps, size = len(rows.cells), len(rows.gaps), rows.grid.size
    if not gaps or dense_is_cheap(observed, gaps):
        return
    columns = max(block.stop - block.start for block in blocks(probes, size))
    require_memory(
        like.element_size() * size * (GRID_VECTORS + PROBE_VECTORS * columns),
        like.device,
        f"an evidence with a standard error takes solves of {columns} probe(s) at a time over "
        f"{size:,} cells, and",
        f"thin an axis, take dtype=float32 or fewer than probes={probes}",
        memory_budget,
    )


def inner_spectral_sum(
    system: GridSystem, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> tuple[Tensor, FactorGradient]:
    """``spectral_sum`` for the N observed cells; circles are scaled down to their axes."""
    inner = system.rows.grid.inner_size
    count = round(system.num_observed * system.size / inner)
    value, gradient = system.spectral_sum(function, slope, count)
    scale = inner / system.size
    return (value, gradient) if inner == system.size else (scale * value, scale * gradient)


def szego_edge_term(system: GridSystem, axis: int) -> tuple[Tensor, FactorGradient]:
    """Correction of the log-determinant for the ends of the one axis that is a circle; gradient.

    log|T_m| = m L_0 + sum_k k L_k^2 + o(1) for a Toeplitz matrix T_m whose symbol has a logarithm
    with Fourier coefficients L_k; summed over the eigenvalues of the other axes.

    Cost: one FFT of the grid and its derivative. Source: the strong Szego limit theorem.
    """
    spectrum = system.spectrum
    size = spectrum.values[axis].shape[0]
    share = system.num_observed / system.rows.grid.inner_size
    with torch.enable_grad():
        leaves = [v.double().clone().requires_grad_() for v in spectrum.values]
        noise = system.noise.double().clone().requires_grad_()
        beside = [v for i, v in enumerate(leaves) if i != axis]
        others = kronecker_vector(beside) if beside else noise.detach().new_ones(1)
        symbol = torch.outer(others * share, leaves[axis][: size // 2 + 1]) + noise
        coefficients = torch.fft.irfft(symbol.log() + 0j, n=size)[:, 1 : size // 2]
        weights = torch.arange(1, size // 2, dtype=coefficients.dtype, device=noise.device)
        total = (coefficients.square() @ weights).sum()
        *slopes, of_noise = torch.autograd.grad(total, [*leaves, noise])
    like = system.noise.dtype
    factors = spectrum.by_factors([s.to(like) for s in slopes])
    return total.detach(), FactorGradient(factors, of_noise.to(like))


def _whole_logdet(system: GridSystem) -> tuple[Tensor, FactorGradient]:
    """log|K + sigma^2 I| over the whole grid, circles included."""
    return system.spectral_sum(torch.log, torch.reciprocal)


def _dense_observed(system: GridSystem) -> tuple[Tensor, FactorGradient]:
    def weights(matrix: Tensor) -> tuple[Tensor, Tensor]:
        lower = observed_factor(matrix)
        return 2.0 * lower.diagonal().log().sum(), torch.cholesky_inverse(lower)

    return dense_function(system, weights)


def dense_function(
    system: GridSystem, function: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, FactorGradient]:
    """A scalar of the dense K_XX + sigma^2 I, in float64, and its gradient.

    Args:
        function: matrix (N, N) -> (value, derivative (N, N)).
    """
    with torch.enable_grad():
        leaves = [f.to(torch.float64, copy=True).requires_grad_() for f in system.factors]
        covariance = observed_covariance(leaves, system.rows)
    matrix = covariance.detach().clone()
    matrix.diagonal().add_(system.noise)
    value, weight = function(matrix)
    factors = torch.autograd.grad(covariance, leaves, weight)
    return value, FactorGradient(list(factors), weight.diagonal().sum()).to(system.noise)


def _dense_gaps(system: GridSystem) -> tuple[Tensor, FactorGradient]:
    """d log|F| = -sum_j u_j^T dK_sigma u_j with U = C[:, Z] R, R R^T = F^{-1}."""
    like = system.noise
    system = system.double()  # rounding in float32 swamps the small eigenvalues of F
    value, gradient = _whole_logdet(system)
    lower, parts = gap_columns(system)
    for columns in parts:
        gradient = gradient + -1.0 * system.bilinear_gradient(columns, columns)
    return value + 2.0 * lower.diagonal().log().sum(), gradient.to(like)


def _slq_fill(
    system: GridSystem, options: GapOptions, probes: int, generator: torch.Generator | None
) -> GridLogdet:
    value, gradient = _whole_logdet(system)
    gaps = system.rows.gaps
    z = _probes(system, system.num_gaps, probes, generator)
    samples, reports = [], []
    for block in blocks(probes, system.size):
        solved = options.conjugate_gradients(system.missing, z[:, block], verify=False)
        samples.append(_samples(z[:, block], solved))
        reports.append(solved.report)
        for j in range(block.stop - block.start):
            left = system.inverse(gaps, None, solved.solution[:, j])
            right = system.inverse(gaps, None, z[:, block.start + j])
            gradient = gradient + (-1.0 / probes) * system.bilinear_gradient(left, right)
    mean, error = mean_and_error(torch.cat(samples))
    return GridLogdet(
        value + mean, gradient, "slq_fill", False, error, least_converged_report(reports)
    )


def _slq_ignore(
    system: GridSystem, options: GapOptions, probes: int, generator: torch.Generator | None
) -> GridLogdet:
    q = ignore_preconditioner(system, options.precondition_rank, options.memory_budget)
    z = _probes(system, system.num_observed, probes, generator)
    samples, reports, gradient = [], [], None
    for block in blocks(probes, system.size):
        part = z[:, block]
        rhs = part if q is None else q.root_matmul(part)
        solved = options.conjugate_gradients(system.observed, rhs, q, verify=False)
        samples.append(_samples(part, solved))
        reports.append(solved.report)
        rights = part if q is None else q.inverse_root_matmul(part, transpose=True)
        found = system.bilinear_gradient(system.on_grid(solved.solution), system.on_grid(rights))
        found = found * (1.0 / probes)
        gradient = found if gradient is None else gradient + found
    assert gradient is not None
    mean, error = mean_and_error(torch.cat(samples))
    value = mean if q is None else mean + q.logdet()
    return GridLogdet(value, gradient, "slq_ignore", False, error, least_converged_report(reports))


def _samples(z: Tensor, solved: CGResult) -> Tensor:
    """z^T log(A) z per column, by the Lanczos quadrature of the solve."""
    return quadrature_of_solve(solved, z.square().sum(0))[1]


def least_converged_report(reports: Sequence[SolveReport]) -> SolveReport:
    """The report of a solve that did not converge, else that of the longest."""
    return max(reports, key=lambda r: (not r.converged, r.iterations))


def _probes(system: GridSystem, rows: int, count: int, generator: torch.Generator | None) -> Tensor:
    like = system.noise
    return probe_vectors(rows, count, generator=generator, dtype=like.dtype, device=like.device)
