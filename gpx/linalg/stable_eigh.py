"""Symmetric eigendecomposition whose gradient stays finite where eigenvalues coincide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.linalg.known_gradient import first_derivative_only

RELATIVE_GAP = 1e-12
"""Eigenvalues closer than this times the largest count as equal: their gap no longer contributes to
the gradient of the eigenvectors."""


def stable_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues in descending order and eigenvectors, of symmetric matrices (..., m, m).

    The sum of every eigenvector is made positive (its first moment where the sum is rounding, as of
    odd functions), so that the result does not depend on the library's signs.

    The derivative of eigenvector b has weights 1 / (lambda_b - lambda_a) on the others, which are
    infinite between eigenvalues that coincide, as the rounded ones of smooth kernels do; here they
    are delta / (delta^2 + eps^2) with eps = 1e-12 lambda_max. Gradients are exact for simple
    eigenvalues and for functions that do not depend on the basis of an eigenspace.

    Returns:
        values (..., m), vectors (..., m, m), columns in the order of the values; differentiable
        once.

    Cost: O(m^3) each way.
    Source: Evans thesis, section 4.3; the regularised gap is ours.
    """
    values, vectors = _StableEigh.apply(matrix)
    return values, vectors


class _StableEigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        values, vectors = values.flip(-1), vectors.flip(-1)
        total = vectors.sum(-2, keepdim=True)
        place = torch.arange(vectors.shape[-2], dtype=vectors.dtype, device=vectors.device)
        moment = (place.unsqueeze(-1) * vectors).sum(-2, keepdim=True)
        lead = torch.where(total.abs() > 1e-6, total, moment)
        vectors = vectors * torch.where(lead < 0, -1.0, 1.0).to(vectors.dtype)
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, values_grad: Tensor, vectors_grad: Tensor) -> Tensor:
        values, vectors = ctx.saved_tensors
        gap = values.unsqueeze(-2) - values.unsqueeze(-1)
        floor = RELATIVE_GAP * values.abs().amax(-1)[..., None, None]
        weight = gap / (gap.square() + floor.square()).clamp(min=torch.finfo(gap.dtype).tiny)
        inner = torch.diag_embed(values_grad) + weight * (vectors.mT @ vectors_grad)
        full = vectors @ inner @ vectors.mT
        return 0.5 * (full + full.mT)
