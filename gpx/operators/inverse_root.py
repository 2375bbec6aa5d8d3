"""A^{-1/2} times vectors by a dense eigendecomposition, with a gradient that divides by no gap."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpx.errors import NotPositiveDefinite


def inverse_root(operator: LinearOperator, right: Tensor) -> Tensor:
    """A^{-1/2} right for a symmetric positive definite A (..., n, n) and right (n,) or (..., n, c).

    Math: the derivative of f(A) = V f(s) V^T in the basis V has entries dA_ij (f(s_i) - f(s_j)) /
    (s_i - s_j) (Daleckii and Krein 1965); for f = s^{-1/2} the quotient is
    -1 / (sqrt(s_i s_j) (sqrt(s_i) + sqrt(s_j))), without a difference.

    Raises:
        NotPositiveDefinite: an eigenvalue is not positive.
    Cost: about 10 n^3; gradient 4 n^3 and one bilinear derivative with n columns; memory n^2.
    """
    block = right.unsqueeze(-1) if right.ndim == 1 else right
    out = _InverseRoot.apply(operator, block, *operator.representation())
    assert isinstance(out, Tensor)
    return out.squeeze(-1) if right.ndim == 1 else out


class _InverseRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: LinearOperator, right: Tensor, *tensors: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(operator.to_dense())
        if not bool((values > 0).all()):
            raise NotPositiveDefinite(
                f"the inverse square root of {type(operator).__name__} of shape "
                f"{tuple(operator.shape)} met the eigenvalue {float(values.min()):.2e}; add a "
                "positive diagonal (noise variance or jitter)"
            )
        scales = values.sqrt()
        ctx.operator = operator
        ctx.save_for_backward(scales, vectors, right)
        return vectors @ ((vectors.mT @ right) / scales.unsqueeze(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scales, vectors, right = ctx.saved_tensors
        rotated = vectors.mT @ grad
        back = vectors @ (rotated / scales.unsqueeze(-1))
        found: tuple[Any, ...] = (None,) * (len(ctx.needs_input_grad) - 2)
        if any(ctx.needs_input_grad[2:]):
            one, other = scales.unsqueeze(-1), scales.unsqueeze(-2)
            weights = rotated @ (vectors.mT @ right).mT
            weights = -weights / (one * other * (one + other))
            found = ctx.operator._bilinear_derivative(vectors @ weights, vectors)
        return (None, back.sum_to_size(right.shape), *found)
