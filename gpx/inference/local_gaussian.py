"""Conditionals and divergences of many small Gaussian groups, with gradients in closed form.

Differentiating a Cholesky factor step by step passes over the (g, h, h) arrays a dozen times. The
results needed here have simple gradients with respect to the covariance K itself: of rank one or
two for a conditional, one matrix product for a divergence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.linalg.known_gradient import first_derivative_only


def conditionals(
    inner: Tensor, factor: Tensor, cross: Tensor, prior: Tensor, there: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weights A = K^{-1} C (g, h, q) and variances r_j = prior_j - c_j^T K^{-1} c_j (g, q).

    Args:
        inner (g, h, h): K without its noise; only receives K's gradient, its values are not used.
        factor (g, h, h): lower Cholesky factor of K, with the noise; no gradient.
        cross (g, h, q): C, zero for absent members.
        prior (g, q): prior variances.
        there (g, h): 0 for absent members, whose rows of K are the identity; None: all are present.

    With U = K^{-1} dA and R = diag(dr), dC = U - 2 A R and dK = A R A^T - (U A^T + A U^T) / 2.
    Cost: g h^2 q operations, forward and backward. First derivatives only.
    """
    weights, rest = _Conditionals.apply(inner, factor, cross, prior, there)
    return weights, rest


class _Conditionals(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inner: Tensor, factor: Tensor, cross: Tensor, prior: Tensor, there: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        white = torch.linalg.solve_triangular(factor, cross, upper=False)
        weights = torch.linalg.solve_triangular(factor.mT, white, upper=True)
        ctx.save_for_backward(factor, weights, there)
        return weights, prior - white.square().sum(1)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, to_weights: Tensor, to_rest: Tensor) -> tuple[Tensor | None, ...]:
        factor, weights, there = ctx.saved_tensors
        back = torch.linalg.solve_triangular(factor, to_weights, upper=False)
        back = torch.linalg.solve_triangular(factor.mT, back, upper=True)
        if there is not None:
            back = back * there.unsqueeze(2)
        scaled = weights * to_rest.unsqueeze(1)
        to_inner = None
        if ctx.needs_input_grad[0]:
            left = torch.cat([scaled - 0.5 * back, weights], 2)
            right = torch.cat([weights, -0.5 * back], 2)
            to_inner = left @ right.mT
        return to_inner, None, back - 2.0 * scaled, to_rest, None


def prior_divergence(inner: Tensor, factor: Tensor, mean: Tensor, root: Tensor) -> Tensor:
    """(tr(K^{-1} S) + m^T K^{-1} m - h + log|K|) / 2 of every group (g,), S = R R^T.

    That is KL(N(m, S) || N(0, K)) plus half of log|S|, which depends on the form of R.

    Args:
        inner, factor: as of ``conditionals``.
        mean (g, h): m.
        root (g, h, r): R; or (g, h), a diagonal one.

    With V = K^{-1} R and b = K^{-1} m, dK = (K^{-1} - V V^T - b b^T) / 2, dR = V, dm = b.
    Cost: g h^2 (2 h + r) operations forward and 2 g h^2 (h + r) backward. First derivatives only.
    """
    found = _PriorDivergence.apply(inner, factor, mean, root)
    assert isinstance(found, Tensor)
    return found


class _PriorDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner: Tensor, factor: Tensor, mean: Tensor, root: Tensor) -> Tensor:
        h = factor.shape[1]
        eye = torch.eye(h, dtype=factor.dtype, device=factor.device).expand_as(factor)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        white_root = inverse * root.unsqueeze(1) if root.ndim == 2 else inverse @ root
        white_mean = inverse @ mean.unsqueeze(2)
        ctx.save_for_backward(inverse, white_mean, root, inner, mean)
        squares = white_root.square().sum((1, 2)) + white_mean.square().sum((1, 2))
        return 0.5 * (squares - h) + factor.diagonal(dim1=1, dim2=2).log().sum(1)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inverse, white_mean, root, *_ = ctx.saved_tensors
        precision = inverse.mT @ inverse
        solved_mean = inverse.mT @ white_mean
        diagonal = root.ndim == 2
        solved = precision * root.unsqueeze(1) if diagonal else precision @ root
        to_root = solved.diagonal(dim1=1, dim2=2) if diagonal else solved
        to_inner = None
        if ctx.needs_input_grad[0]:
            to_inner = torch.baddbmm(precision, solved, solved.mT, alpha=-1.0)
            to_inner.baddbmm_(solved_mean, solved_mean.mT, alpha=-1.0)
            to_inner.mul_(0.5 * grad[:, None, None])
        to_mean = solved_mean.squeeze(2) * grad[:, None]
        return to_inner, None, to_mean, to_root * grad.view(-1, *[1] * (root.ndim - 1))


def half_log_determinant(root: Tensor) -> Tensor:
    """log|R R^T| / 2 of roots R (g, h, r), r >= h: (g,).

    From R^T = Q U, not from the product R R^T, which is singular to rounding where the rows of R
    are parallel to eight digits, as those of close neighbours are. dR = U^{-1} Q^T, Q^T = U^{-T} R.

    Cost: 4 g h^2 r operations. First derivatives only.
    """
    found = _HalfLogDeterminant.apply(root)
    assert isinstance(found, Tensor)
    return found


class _HalfLogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, root: Tensor) -> Tensor:
        upper = torch.linalg.qr(root.mT, mode="r").R
        ctx.save_for_backward(upper, root)
        return upper.diagonal(dim1=1, dim2=2).abs().log().sum(1)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        upper, root = ctx.saved_tensors
        # Q is not formed: on a GPU torch would form it one matrix of the batch after the other
        orthogonal = torch.linalg.solve_triangular(upper.mT, root, upper=False)
        solved = torch.linalg.solve_triangular(upper, orthogonal, upper=True)
        return solved * grad[:, None, None]
