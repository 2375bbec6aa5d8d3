"""Conjugate gradients on (K + s_q I) x_q = b for many shifts at the price of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import ConfigError, DidNotConverge, NotPositiveDefinite
from gpx.linalg.cg_iteration import column_scales
from gpx.linalg.report import SolveReport

TRUE_SLACK = 2.0
"""How far the true residual may exceed the tolerance that the recurrence's has met."""


@dataclass(frozen=True)
class ShiftedResult:
    """Solutions (q, n) or (q, n, c) for q shifts; ``report.residual`` is the hardest system's."""

    solutions: Tensor
    report: SolveReport


@torch.no_grad()
def shifted_conjugate_gradients(
    matmul: Callable[[Tensor], Tensor],
    rhs: Tensor,
    shifts: Sequence[float],
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    check_every: int | None = None,
) -> ShiftedResult:
    """Solve (K + s_q I) x_q = b for all non-negative shifts s_q from one sequence of products.

    Krylov spaces do not change under a shift, so that the residuals of all systems stay parallel
    to the seed's, r_q = zeta_q r. The seed is the smallest shift, the hardest system; the others
    converge sooner and stop moving when zeta_q has no more effect.

    Args:
        matmul: (n, c) -> K times it (or (n,) for a vector b).
        rhs (n,) or (n, c): b.
        tolerance: relative residual norm of the seed system, every column.

    Returns:
        The solutions and a report; unconverged is reported, not raised (the callers decide).

    Raises:
        NotPositiveDefinite: p^T (K + s I) p <= 0. DidNotConverge: NaN or infinite values.

    Cost: one product per step and one at the end, n c q operations besides; memory 2 n c q. No
    preconditioner: it would have to commute with the shift.
    Source: Jegerlehner 1996, eqs. 2.42-2.44.
    """
    if len(shifts) == 0 or min(shifts) < 0.0:
        raise ConfigError(f"shifts must be non-negative and at least one, got {list(shifts)}")
    if rhs.numel() == 0:
        report = SolveReport(0, 0.0, True, "converged: no right-hand sides")
        return ShiftedResult(rhs.new_zeros(len(shifts), *rhs.shape), report)
    check_every = check_every or (1 if rhs.device.type == "cpu" else 10)
    block = rhs.detach().unsqueeze(-1) if rhs.ndim == 1 else rhs.detach()
    scale = column_scales(block).unsqueeze(-2)  # no inner product under- or overflows
    block = block / scale
    seed = min(shifts)
    extra = torch.tensor(shifts, dtype=block.dtype, device=block.device).sub_(seed).unsqueeze(-1)
    x = block.new_zeros(len(shifts), *block.shape)
    directions = block.expand(x.shape).clone()
    r, p = block.clone(), block.clone()
    gamma = r.square().sum(-2)
    goal = tolerance**2 * gamma
    zeta = torch.ones_like(extra * gamma)
    zeta_old, size_old = zeta.clone(), torch.ones_like(gamma)
    ratio = torch.zeros_like(gamma)
    worst = torch.full((), torch.inf, dtype=block.dtype, device=block.device)
    steps = 0
    while steps < max_iterations:
        if steps % check_every == 0 and not bool((gamma > goal).any()):
            break
        kp = matmul(p.squeeze(-1) if rhs.ndim == 1 else p).reshape(p.shape) + seed * p
        active = gamma > goal
        curvature = (p * kp).sum(-2)
        worst = torch.minimum(worst, torch.where(active, curvature, torch.inf).min())
        size = torch.where(active, gamma / curvature, 0.0)
        denominator = size * ratio * (zeta_old - zeta) + zeta_old * size_old * (1.0 + extra * size)
        new = torch.where(active, zeta * zeta_old * size_old / denominator, zeta)
        # the coefficient of a system that has converged underflows: it must stay zero, not 0 / 0
        new = torch.where((denominator == 0.0) | (zeta == 0.0), 0.0, new)
        factor = torch.where(zeta == 0.0, 0.0, new / zeta)
        x.addcmul_((size * factor).unsqueeze(-2), directions)
        r.addcmul_(size.unsqueeze(-2), kp, value=-1.0)
        new_gamma = r.square().sum(-2)
        ratio = torch.where(active, new_gamma / gamma, 0.0)
        p.mul_(ratio.unsqueeze(-2)).add_(r)
        directions.mul_((ratio * factor.square()).unsqueeze(-2)).addcmul_(
            new.unsqueeze(-2), r.expand(x.shape)
        )
        zeta_old, zeta, size_old, gamma = zeta, new, torch.where(active, size, 1.0), new_gamma
        steps += 1
        if steps % check_every == 0 and not bool(worst > 0.0):
            break
    if not bool(worst > 0.0):
        lowest = float(worst)
        if lowest != lowest or not bool(torch.isfinite(block).all()):
            raise DidNotConverge(
                "shifted conjugate gradients met NaN or infinite values; check the inputs and "
                "hyperparameters"
            )
        raise NotPositiveDefinite(
            f"the shifted matrix is not positive definite: a direction has curvature {lowest:.3g}; "
            "add a positive diagonal (noise variance)"
        )
    # judged by the true residual: the recurrence's falls on when the true one no longer does
    hardest = x[shifts.index(seed)]
    product = matmul(hardest.squeeze(-1) if rhs.ndim == 1 else hardest).reshape(hardest.shape)
    norm = torch.linalg.vector_norm(block, dim=-2).clamp(min=torch.finfo(block.dtype).tiny)
    true = torch.linalg.vector_norm(block - product - seed * hardest, dim=-2)
    relative = float((true / norm).max())
    converged = relative <= TRUE_SLACK * tolerance
    reason = f"seed system's relative residual {relative:.3g} against {tolerance:.3g}"
    report = SolveReport(steps, relative, converged, reason)
    x = x * scale
    return ShiftedResult(x.squeeze(-1) if rhs.ndim == 1 else x, report)
