"""Gradients worked out by hand, in the graph of autograd; their second derivatives are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpx.errors import GPXError


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[count:])
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        known = ctx.saved_tensors
        return (None, None, *(grad.to(g.dtype) * g for g in known), *(None for _ in known))


def with_gradient(value: Tensor, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """``value`` as a differentiable function of ``inputs`` with the gradients given.

    Args:
        value (): detached scalar.
        inputs: tensors the scalar depends on; gradients flow on into their own graphs.
        gradients: d value / d input, each of its input's shape.

    Returns:
        (): equal to ``value``. First derivatives only: a second backward pass raises RuntimeError.
    """
    out = _KnownGradient.apply(value, len(inputs), *inputs, *gradients)
    assert isinstance(out, Tensor)
    return out


class _FirstDerivativeOnly(torch.autograd.Function):
    """Identity whose own derivative raises.

    torch's ``once_differentiable`` is silent when the incoming gradient is a constant, and the
    second derivative then comes out wrong.
    """

    @staticmethod
    def forward(ctx: Any, refusal: str, value: Tensor, *sources: Tensor) -> Tensor:
        ctx.refusal = refusal
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise GPXError(ctx.refusal)


def first_derivative_only(
    gradients: Sequence[Tensor | None], sources: Sequence[Tensor], refusal: str
) -> tuple[Tensor | None, ...]:
    """``gradients``, whose own derivatives by ``sources`` raise GPXError with the text ``refusal``.

    For backward passes that run with ``create_graph=True``.
    """
    return tuple(
        None if g is None else _FirstDerivativeOnly.apply(refusal, g, *sources) for g in gradients
    )
