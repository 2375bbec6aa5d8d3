"""Products of operators that know their gradient in closed form."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Product(torch.autograd.Function):
    """y = A b by ``_multiply``; gradients by ``_bilinear_derivative`` and ``_t_multiply``."""

    @staticmethod
    def forward(ctx: Any, operator: Any, right: Tensor, *tensors: Tensor) -> Tensor:
        ctx.operator = operator
        ctx.save_for_backward(right, *tensors)  # the tensors only so that changes are noticed
        out = operator._multiply(right)
        assert isinstance(out, Tensor)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        right = ctx.saved_tensors[0]
        back: Tensor | None = None
        found: tuple[Any, ...] = (None,) * (len(ctx.needs_input_grad) - 2)
        if ctx.needs_input_grad[1]:
            back = ctx.operator._t_multiply(grad).sum_to_size(right.shape)
        if any(ctx.needs_input_grad[2:]):
            found = ctx.operator._bilinear_derivative(grad, right)
        return (None, back, *found)


def closed_form_product(operator: LinearOperator, right: Tensor) -> Tensor:
    """operator @ right (..., N, c), differentiable once, on the operator itself.

    The operator has ``_multiply`` and ``_t_multiply`` (products with it and its transpose, without
    gradients) and ``_bilinear_derivative``. Without a gradient to record, only ``_multiply`` runs.
    """
    if torch.is_grad_enabled():
        tensors = operator.representation()
        if right.requires_grad or any(t.requires_grad for t in tensors):
            out = _Product.apply(operator, right, *tensors)
            assert isinstance(out, Tensor)
            return out
    return operator._multiply(right)
