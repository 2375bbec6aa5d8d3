"""The two main products of sparse variational inference, with hand-written gradients.

A step of stochastic variational inference spends its time in A = L^{-1} K_zx and in the moments of
S^T A. Automatic differentiation through a Cholesky factorisation and a triangular solve would be
several times slower; here the factorisation is differentiated in closed form.

Notation: M inducing points, B data points, p latent functions. L = chol(K_zz), A (M, B).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.linalg.known_gradient import first_derivative_only
from gpx.linalg.triangular import (
    lower_lower_matmul,
    lower_matmul,
    lower_of_product,
    lower_transpose_matmul,
)


class _Project(torch.autograd.Function):
    """A = L^{-1} K_zx as a function of K_zz and K_zx."""

    @staticmethod
    def forward(ctx: Any, k_zz: Tensor, k_zx: Tensor, inverse: Tensor, jitter: float) -> Tensor:
        projection = lower_matmul(inverse, k_zx)
        ctx.save_for_backward(projection, inverse)
        ctx.dtype, ctx.jitter = k_zz.dtype, jitter
        return projection

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        projection, inverse = ctx.saved_tensors
        # With dA the gradient of A: the gradient of L is -tril(L^{-T} dA A^T), and the one of K_zz
        # is L^{-T} Phi(L^T dL) L^{-1} with Phi = tril, diagonal halved. L^T tril(X) and L^T X have
        # the same lower triangle, so L cancels inside Phi. The result is left unsymmetrised: every
        # kernel matrix is symmetric in its two (equal) arguments, so <dK, G> = <dK, sym G>.
        grad_zx = lower_transpose_matmul(inverse, grad) if ctx.needs_input_grad[1] else None
        grad_zz = None
        if ctx.needs_input_grad[0]:
            phi = lower_of_product(grad, projection, factor=-1.0)
            phi.diagonal().mul_(0.5)
            grad_zz = lower_transpose_matmul(inverse, lower_lower_matmul(phi, inverse))
            grad_zz = grad_zz.to(ctx.dtype)
            if ctx.jitter:  # the jitter is proportional to the mean diagonal
                diagonal = grad_zz.diagonal()
                diagonal.add_(diagonal.sum(), alpha=ctx.jitter / len(diagonal))
        return grad_zz, grad_zx, None, None


def project(k_zz: Tensor, k_zx: Tensor, inverse: Tensor, jitter: float = 0.0) -> Tensor:
    """A = L^{-1} K_zx, differentiable (once) in K_zz and K_zx.

    Args:
        k_zz (M, M): symmetric, only for its gradient; may have a wider dtype than k_zx.
        k_zx (M, B).
        inverse (M, M): L^{-1} with L L^T = k_zz + jitter mean(diag k_zz) I, without a graph.
        jitter: relative to the mean diagonal of k_zz.

    Cost: forward 5/8 of 2 M^2 B operations, backward twice that plus about 2.3 M^3.
    """
    return _Project.apply(k_zz, k_zx, inverse, jitter)


class _FactorTerms(torch.autograd.Function):
    """A^T m, diag(A^T (S S^T - I) A) and KL(N(m, S S^T) || N(0, I)); S has a log diagonal."""

    @staticmethod
    def forward(
        ctx: Any, projection: Tensor, mean: Tensor, raw: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        factor = raw.tril()
        factor.diagonal(dim1=-2, dim2=-1).exp_()
        latents, size, _ = factor.shape
        if latents == 1:
            rooted = lower_transpose_matmul(factor[0], projection)
        else:
            rooted = factor.mT.reshape(latents * size, size) @ projection
        ctx.save_for_backward(projection, mean, factor, rooted, raw)
        squares = rooted.square().view(latents, size, -1)
        excess = squares.addcmul_(projection, projection, value=-1.0).sum(1)
        # the divergence as one sum: the other terms are added to entries of the squares of S
        summands = factor.square()
        summands.diagonal(dim1=-2, dim2=-1).sub_(raw.diagonal(dim1=-2, dim2=-1), alpha=2.0)
        summands[..., 0].addcmul_(mean, mean)
        kl = torch.rsub(summands.sum(), -0.5 * mean.numel(), alpha=-0.5)
        return mean @ projection, excess, kl

    @staticmethod
    @first_derivative_only
    def backward(
        ctx: Any, grad_mean: Tensor, grad_excess: Tensor, grad_kl: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        projection, mean, factor, rooted, _ = ctx.saved_tensors
        latents, size, _ = factor.shape
        # half the gradient through the excess variance; doubled when the other part is added
        weighted = (rooted.view(latents, size, -1) * grad_excess.unsqueeze(1)).view_as(rooted)
        if latents == 1:
            grad = lower_matmul(factor[0], weighted)
        else:
            grad = factor.transpose(0, 1).reshape(size, latents * size) @ weighted
        grad.addcmul_(projection, grad_excess if latents == 1 else grad_excess.sum(0), value=-1.0)
        grad.addmm_(mean.mT, grad_mean, beta=2.0)
        grad_m = grad_s = None
        if ctx.needs_input_grad[1]:
            grad_m = torch.addcmul(grad_mean @ projection.mT, mean, grad_kl)
        if ctx.needs_input_grad[2]:
            if latents == 1:
                grad_s = lower_of_product(projection, weighted, factor=2.0).unsqueeze(0)
            else:
                full = (projection @ weighted.mT).mul_(2.0).view(size, latents, size)
                grad_s = full.transpose(0, 1).tril()
            diagonal = grad_s.addcmul_(factor, grad_kl).diagonal(dim1=-2, dim2=-1)
            diagonal.mul_(factor.diagonal(dim1=-2, dim2=-1)).sub_(grad_kl)
        return grad, grad_m, grad_s


def factor_terms(projection: Tensor, mean: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of A^T v for v ~ N(m, S S^T), and its divergence from N(0, I).

    Args:
        projection (M, B): A.
        mean (p, M): m, one row per latent function.
        raw (p, M, M): strict lower triangle of S, and the logarithms of its diagonal; entries above
            the diagonal are not read.

    Returns:
        mean (p, B) of A^T v, its excess variance diag(A^T (S S^T - I) A) (p, B) over the prior's,
        and the KL (), in nats; differentiable once.

    Cost: forward 2 p M^2 B operations, backward twice that (5/8 of it for p = 1 on CPUs).
    """
    return _FactorTerms.apply(projection, mean, raw)


def gaussian_kl(mean: Tensor, factor: Tensor, log_diagonal: Tensor) -> Tensor:
    """KL(N(m, S S^T) || N(0, I)) in nats, of all latent functions; S by its factor or diagonal."""
    squares = factor.square().sum() + mean.square().sum() - mean.numel()
    return 0.5 * squares - log_diagonal.sum()
