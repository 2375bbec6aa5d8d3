"""b^T K^{-1} b and log det K together, with closed-form gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from linear_operator import LinearOperator, to_linear_operator
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpx.errors import ConfigError, DTypeError, ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.linalg.conjugate_gradients import CGResult, conjugate_gradients
from gpx.linalg.lanczos import tridiagonal_of_cg
from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.quadrature import gauss, gauss_radau
from gpx.linalg.report import CholeskyReport, SolveReport
from gpx.linalg.stopping import StoppingRule
from gpx.linalg.trace import mean_and_error, probe_vectors


@dataclass(frozen=True)
class InvQuadLogdet:
    """Both terms of a Gaussian log density, differentiable, and how good they are.

    Attributes:
        inv_quad (): sum over the columns of b^T K^{-1} b; iterative: a lower bound, short by
            r^T K^{-1} r.
        logdet (): log det K in nats; iterative: an estimate.
        logdet_error (): standard error of ``logdet`` over the probes (0 for Cholesky).
        logdet_bracket: mean Gauss-Radau and Gauss rule (lower, upper): what the steps leave open.
        report: of the factorisation or of the solves.
    """

    inv_quad: Tensor
    logdet: Tensor
    logdet_error: Tensor
    logdet_bracket: tuple[Tensor, Tensor]
    report: CholeskyReport | SolveReport


def inv_quad_logdet(
    matrix: Tensor | LinearOperator,
    rhs: Tensor,
    *,
    method: Literal["cholesky", "iterative"],
    preconditioner: Preconditioner | None = None,
    probes: int | Tensor = 10,
    generator: torch.Generator | None = None,
    stop: StoppingRule | None = None,
    max_iterations: int = 1000,
    node: float | None = None,
    ladder: tuple[float, ...] | None = None,
    on_failure: Literal["raise", "warn", "return"] = "raise",
) -> InvQuadLogdet:
    """b^T K^{-1} b and log det K; there is no size at which one method turns into the other.

    Math: with v = K^{-1} b, d(b^T K^{-1} b) = 2 v^T db - v^T dK v and d log det K = tr(K^{-1} dK).
    Iterative: one preconditioned CG run solves for b and for probes w = R xi together; the
    log-determinant is the Gauss(-Radau) quadrature of the Lanczos matrix in the probes' CG
    coefficients plus log det Q, and the trace is the mean of (K^{-1} w)^T dK (Q^{-1} w).

    Args:
        matrix (n, n): symmetric positive definite, tensor or operator; gradients reach the tensors
            it is made of.
        rhs (n,) or (n, c): b.
        method: "cholesky" (dense, exact) or "iterative".
        preconditioner: iterative only; not differentiated. A root is needed for the probes.
        probes: how many, or the vectors xi (n, L) themselves for a fixed-probe line search.
        stop, max_iterations, on_failure: of ``conjugate_gradients``; the rule is applied to b and
            to the probes.
        node: lower bound of the spectrum of K (with a preconditioner: of R^{-1} K R^{-T}; default 1
            if it is below the kernel). None: no lower end of the bracket, ``logdet`` is the Gauss
            rule.
        ladder: Cholesky only; the relative jitters that may be tried.

    Exactness: Cholesky exact; iterative: see ``InvQuadLogdet``; its gradients are unbiased up to
    the solves' residuals. First derivatives only.
    Cost: Cholesky n^3 / 3, and n^3 backward; iterative one product with c + L columns per step, and
    one bilinear derivative with c + L columns backward.
    Raises: as ``cholesky`` and ``conjugate_gradients``; ShapeError, DTypeError, ConfigError.
    Source: Burt thesis, sections 4.1.3 to 4.1.5.
    """
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"the matrix must be (n, n), got {tuple(matrix.shape)}")
    if rhs.ndim not in (1, 2) or rhs.shape[0] != matrix.shape[0]:
        raise ShapeError(
            f"right-hand sides {tuple(rhs.shape)} do not fit a matrix of {matrix.shape[0]} rows"
        )
    if rhs.dtype != matrix.dtype or rhs.device != matrix.device:
        raise DTypeError(
            f"the matrix is {matrix.dtype} on {matrix.device}, the right-hand sides {rhs.dtype} on "
            f"{rhs.device}; convert one of them"
        )
    block = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
    if method == "cholesky":
        dense = matrix if isinstance(matrix, Tensor) else matrix.to_dense()
        return _direct(dense, block, ladder)
    if method != "iterative":
        raise ConfigError(f'method must be "cholesky" or "iterative", got {method!r}')
    if max_iterations < 1:
        raise ConfigError(
            f"a log-determinant is read off the steps of the solve; max_iterations is "
            f"{max_iterations}, at least one is needed"
        )
    operator = to_linear_operator(matrix)
    if isinstance(probes, Tensor):
        xi = probes
        if xi.ndim != 2 or xi.shape[0] != block.shape[0] or not xi.shape[1]:
            raise ShapeError(
                f"probes are {tuple(xi.shape)}; expected ({block.shape[0]}, L) with L >= 1"
            )
        if xi.dtype != block.dtype or xi.device != block.device:
            raise DTypeError(
                f"probes are {xi.dtype} on {xi.device}, the right-hand sides {block.dtype} on "
                f"{block.device}; convert one of them"
            )
    else:
        xi = probe_vectors(
            block.shape[0], probes, generator=generator, dtype=block.dtype, device=block.device
        )
    whole = xi if preconditioner is None else preconditioner.root_matmul(xi)
    with torch.no_grad():
        solved = conjugate_gradients(
            operator.matmul,
            torch.cat([block.detach(), whole], -1),
            preconditioner=preconditioner,
            stop=stop,
            max_iterations=max_iterations,
            on_failure=on_failure,
        )
        if preconditioner is not None and node is None and preconditioner.below_kernel:
            node = 1.0
        logdet, error, bracket = logdet_of_solve(solved, xi, block.shape[1], preconditioner, node)
        v, r = solved.solution[:, : block.shape[1]], solved.residual[:, : block.shape[1]]
        u = solved.solution[:, block.shape[1] :]
        z = whole if preconditioner is None else preconditioner.solve(whole)
        quad = (v * (block.detach() + r)).sum()
    tree, tensors = operator.representation_tree(), operator.representation()
    inv_quad, logdet = _Iterative.apply(tree, quad, logdet, v, u, z, block, *tensors)
    return InvQuadLogdet(inv_quad, logdet, error, bracket, solved.report)


def logdet_of_solve(
    solved: CGResult, xi: Tensor, columns: int, q: Preconditioner | None, node: float | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """log det K from the coefficients of a solve whose last columns were probes.

    Args:
        solved: of right-hand sides and, after them, the probes w = R xi.
        xi (n, L): standard probes.
        columns: right-hand sides before the probes.
        q: preconditioner of the solve; None for none, R = I.
        node: lower bound of the preconditioned spectrum; None for none.

    Returns:
        the middle of the bracket, its standard error over the probes, and the bracket.
    """
    alphas, betas = tridiagonal_of_cg(solved)
    alphas, betas = alphas[columns:], betas[columns:]
    scale = xi.square().sum(0)
    upper = scale * gauss(torch.log, alphas, betas)
    lower = upper if node is None else scale * gauss_radau(torch.log, alphas, betas, node)
    value, error = mean_and_error(0.5 * (upper + lower))
    offset = torch.zeros_like(value) if q is None else q.logdet()
    return value + offset, error, (lower.mean() + offset, upper.mean() + offset)


def _direct(dense: Tensor, block: Tensor, ladder: tuple[float, ...] | None) -> InvQuadLogdet:
    factor, report = cholesky(dense.detach(), name="K", ladder=ladder)
    inv_quad, logdet = _Direct.apply(dense, block, factor, report.relative)
    value = logdet.detach()
    return InvQuadLogdet(inv_quad, logdet, torch.zeros_like(value), (value, value), report)


class _Direct(torch.autograd.Function):
    """Dense: d / dK = g_logdet K^{-1} - g_quad V V^T, through the jitter where one was used."""

    @staticmethod
    def forward(
        ctx: Any, dense: Tensor, block: Tensor, factor: Tensor, relative: float
    ) -> tuple[Tensor, Tensor]:
        v = torch.cholesky_solve(block, factor)
        ctx.save_for_backward(v, factor)
        ctx.relative = relative
        return (block * v).sum(), 2.0 * factor.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, quad: Tensor, logdet: Tensor) -> tuple[Tensor | None, ...]:
        v, factor = ctx.saved_tensors
        matrix = None
        if ctx.needs_input_grad[0]:
            matrix = torch.cholesky_inverse(factor).mul_(logdet)
            matrix.addmm_(v * quad, v.mT, alpha=-1.0)
            if ctx.relative:
                diagonal = matrix.diagonal()
                diagonal += ctx.relative * diagonal.mean()
        return matrix, 2.0 * quad * v, None, None


class _Iterative(torch.autograd.Function):
    """Solves in, gradients out: one bilinear derivative of the operator."""

    @staticmethod
    def forward(
        ctx: Any,
        tree: Any,
        inv_quad: Tensor,
        logdet: Tensor,
        v: Tensor,
        u: Tensor,
        z: Tensor,
        block: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.tree = tree
        ctx.save_for_backward(v, u, z, *tensors)
        return inv_quad.clone(), logdet.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, quad: Tensor, logdet: Tensor) -> tuple[Tensor | None, ...]:
        v, u, z, *tensors = ctx.saved_tensors
        gradients: tuple[Tensor | None, ...] = (None,) * len(tensors)
        if any(ctx.needs_input_grad[7:]):
            operator = ctx.tree(*tensors)
            left = torch.cat([-quad * v, (logdet / u.shape[-1]) * u], -1)
            gradients = operator._bilinear_derivative(left, torch.cat([v, z], -1))
        return (None, None, None, None, None, None, 2.0 * quad * v, *gradients)
