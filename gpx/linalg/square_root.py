"""K^{1/2} b and K^{-1/2} b without a factorisation: for samples and whitening."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.special import ellipj, ellipk
from torch import Tensor

from gpx.errors import ConfigError, DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.linalg.cg_iteration import column_scales
from gpx.linalg.conjugate_gradients import UnconvergedWarning
from gpx.linalg.lanczos import Lanczos
from gpx.linalg.report import SolveReport
from gpx.linalg.shifted_systems import TRUE_SLACK, shifted_conjugate_gradients

Power = Literal["root", "inverse_root"]
OnFailure = Literal["raise", "warn", "return"]


@dataclass(frozen=True)
class RootResult:
    """K^{1/2} b or K^{-1/2} b, of the shape of b, and how it was reached."""

    value: Tensor
    report: SolveReport


def lanczos_root(
    matmul: Callable[[Tensor], Tensor],
    vectors: Tensor,
    *,
    power: Power = "root",
    tolerance: float = 1e-6,
    max_steps: int = 200,
    on_failure: OnFailure = "raise",
) -> RootResult:
    """||b|| U f(T) e_1 from one Lanczos process per column, f = sqrt or 1 / sqrt.

    The change over the last few steps, relative to the result, is the error estimate that
    ``tolerance`` is compared with (worst column).

    Args:
        matmul: (n, c) -> K times it.
        vectors (n,) or (n, c): b; a standard normal b gives a sample of N(0, K) with "root".
        max_steps: capacity of the stored basis.

    Raises:
        DidNotConverge: the estimate stays above the tolerance (by ``on_failure``).
        NotPositiveDefinite: a negative Ritz value beyond rounding.

    Cost: one product per step; memory n c max_steps.
    Source: Burt thesis, section 4.1.4 (Krylov basis and T); Higham 2008, section 13.2.
    """
    if power not in ("root", "inverse_root"):
        raise ConfigError(f'power is "root" or "inverse_root", got {power!r}')
    starts, scale = _starts(vectors)
    if vectors.numel() == 0:
        return _nothing(vectors)
    process = Lanczos(matmul, starts, max_steps)
    previous: Tensor | None = None
    change = math.inf
    while True:
        before = process.steps
        process.extend(5)
        weights = _first_column(process, power)
        # the basis is orthonormal: distances between results are distances between coefficients
        if previous is not None:
            padded = torch.nn.functional.pad(previous, (0, weights.shape[-1] - previous.shape[-1]))
            gap = torch.linalg.vector_norm(weights - padded, dim=-1)
            change = float((gap / torch.linalg.vector_norm(weights, dim=-1)).max())
        ended = process.steps == before or bool(process.exhausted.all())
        if ended:
            change = 0.0
        if ended or change <= tolerance or process.steps == process.capacity:
            break
        previous = weights
    combined = (weights.unsqueeze(1) @ process.basis).squeeze(1)
    value = (process.norms.unsqueeze(-1) * combined).mT.reshape(vectors.shape) * scale
    report = _judge("Lanczos square root", process.steps, change, tolerance, on_failure)
    return RootResult(value, report)


def _nothing(vectors: Tensor) -> RootResult:
    return RootResult(vectors.detach().clone(), SolveReport(0, 0.0, True, "converged: no vectors"))


def _starts(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors to start from and what to multiply the results by; zeros start anywhere, times 0."""
    if vectors.ndim not in (1, 2):
        raise ShapeError(f"square roots take vectors (n,) or (n, c), got {tuple(vectors.shape)}")
    block = vectors.detach().unsqueeze(-1) if vectors.ndim == 1 else vectors.detach()
    scale = column_scales(block)
    zero = (block == 0.0).all(-2)
    starts = torch.where(zero, 1.0, block / scale)
    scale = torch.where(zero, 0.0, scale)
    return starts.reshape(vectors.shape), scale if vectors.ndim > 1 else scale[0]


def _first_column(process: Lanczos, power: Power) -> Tensor:
    """f(T) e_1, (c, t)."""
    values, modes = torch.linalg.eigh(process.tridiagonal())
    slack = 1e3 * torch.finfo(values.dtype).eps * values.abs().amax()
    lowest = values.amin()
    if bool(lowest < -slack) or (power == "inverse_root" and bool(lowest <= 0.0)):
        raise NotPositiveDefinite(
            f"the square root met the Ritz value {float(lowest):.3g}: the matrix is not positive "
            "definite; add a positive diagonal (noise variance or jitter)"
        )
    values = values.clamp(min=0.0)
    image = values.sqrt() if power == "root" else values.rsqrt()
    return (modes @ (image * modes[:, 0, :]).unsqueeze(-1)).squeeze(-1)


def contour_root(
    matmul: Callable[[Tensor], Tensor],
    vectors: Tensor,
    *,
    power: Power = "root",
    smallest: float | None = None,
    largest: float | None = None,
    nodes: int | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    on_failure: OnFailure = "raise",
) -> RootResult:
    """Rational approximation sum_q w_q (K + s_q I)^{-1} b of K^{-1/2} b, all shifts at once.

    The shifts and weights are those of a contour integral in elliptic coordinates; the error falls
    as exp(-2 pi^2 N / (log(condition) + 3)) in the number N of nodes. All shifted systems share the
    products of one CG run, so that memory is n c N and does not grow with the steps.

    Args:
        smallest, largest: bounds of K's spectrum. Default: estimated by 20 Lanczos steps with a
            margin; give ``smallest`` (the noise variance) when it is known, an estimate is only
            good when the spectrum's lower end is isolated or flat.
        nodes: N; default: chosen so that the rational error is below ``tolerance``.
        tolerance: relative residual of the hardest shifted system.

    Raises:
        DidNotConverge: by ``on_failure``. NotPositiveDefinite: no positive spectrum, or a direction
            of negative curvature. ConfigError: bounds out of order.

    Cost: one product per CG step, n c N operations besides, plus one product for the root.
    Source: Hale, Higham and Trefethen 2008, method 3; shifted CG after Jegerlehner 1996.
    """
    if power not in ("root", "inverse_root"):
        raise ConfigError(f'power is "root" or "inverse_root", got {power!r}')
    if vectors.numel() == 0:
        return _nothing(vectors)
    if smallest is None or largest is None:
        low, high = _spectrum_ends(matmul, vectors)
        smallest = low if smallest is None else smallest
        largest = high if largest is None else largest
    if not 0.0 < smallest < largest:
        raise ConfigError(
            f"the spectrum's bounds must satisfy 0 < smallest < largest, got {smallest:.3g} and "
            f"{largest:.3g}; the matrix may not be positive definite"
        )
    if nodes is None:
        rate = 2.0 * math.pi**2 / (math.log(largest / smallest) + 3.0)
        nodes = max(3, math.ceil(math.log(10.0 / tolerance) / rate))
    shifts, weights = contour_nodes(smallest, largest, nodes)
    solved = shifted_conjugate_gradients(
        matmul, vectors, shifts, tolerance=tolerance, max_iterations=max_iterations
    )
    scaled = torch.tensor(weights, dtype=vectors.dtype, device=vectors.device)
    value = torch.tensordot(scaled, solved.solutions, 1)
    if power == "root":
        value = matmul(value)
    report = _judge(
        "contour-integral square root",
        solved.report.iterations,
        solved.report.residual,
        TRUE_SLACK * tolerance,
        on_failure,
    )
    return RootResult(value, report)


def contour_nodes(smallest: float, largest: float, nodes: int) -> tuple[list[float], list[float]]:
    """Shifts s_q > 0 and weights w_q > 0 with x^{-1/2} ~ sum_q w_q / (x + s_q) on the interval.

    Source: Hale, Higham and Trefethen 2008, method 3 for the square root.
    """
    modulus = 1.0 - smallest / largest  # the parameter m = k^2 of the complementary integral
    quarter = float(ellipk(modulus))
    shifts, weights = [], []
    for q in range(nodes):
        sn, cn, dn, _ = ellipj((q + 0.5) * quarter / nodes, modulus)
        shifts.append(float(smallest * (sn / cn) ** 2))
        weights.append(float(2.0 * quarter * math.sqrt(smallest) / (math.pi * nodes) * dn / cn**2))
    return shifts, weights


def _spectrum_ends(matmul: Callable[[Tensor], Tensor], vectors: Tensor) -> tuple[float, float]:
    starts, _ = _starts(vectors)
    process = Lanczos(matmul, starts if vectors.ndim == 1 else starts[:, :1], 20).extend(20)
    values = torch.linalg.eigvalsh(process.tridiagonal())
    low, high = float(values.min()), float(values.max())
    if low <= 0.0:
        raise NotPositiveDefinite(
            f"the square root met the Ritz value {low:.3g}: the matrix is not positive definite; "
            "add a positive diagonal (noise variance or jitter)"
        )
    margin = 1.0 if bool(process.exhausted.all()) else 0.1
    return 0.5 * margin * low, 1.1 * high


def _judge(
    what: str, steps: int, error: float, tolerance: float, on_failure: OnFailure
) -> SolveReport:
    converged = error <= tolerance
    reason = f"{'converged' if converged else 'not converged'}: {error:.3g} against {tolerance:.3g}"
    report = SolveReport(steps, error, converged, reason)
    if not converged:
        text = (
            f"{what} after {steps} steps is {reason}; allow more steps, raise the tolerance or "
            "raise the noise variance"
        )
        if on_failure == "raise":
            raise DidNotConverge(text)
        if on_failure == "warn":
            warnings.warn(text, UnconvergedWarning, stacklevel=3)
    return report
