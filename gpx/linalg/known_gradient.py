"""Gradients worked out by hand, in the graph of autograd; their second derivatives are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.errors import NotAvailable

Backward = Callable[..., Any]


def first_derivative_only(backward: Backward) -> Backward:
    """A ``backward`` of autograd whose results raise NotAvailable when they are differentiated.

    For use under ``@staticmethod``. torch's ``once_differentiable`` says nothing where the incoming
    gradient is a constant, as that of a loss is: Hessians then come out wrong without an error.

    The function must save (``ctx.save_for_backward``) every input or output that it is to refuse
    second derivatives by. Cost: nothing without ``create_graph=True``.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # no create_graph=True
            return found
        sources = [t for t in (*grads, *ctx.saved_tensors) if t is not None and t.requires_grad]
        if isinstance(found, Tensor):
            return _Refusing.apply(found, *sources)
        return tuple(None if g is None else _Refusing.apply(g, *sources) for g in found)

    return once


class _Refusing(torch.autograd.Function):
    """The first argument, as a function of the others whose derivative raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *sources: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise NotAvailable(
            "a second derivative was asked for of an operation whose gradient is written by hand: "
            "only first derivatives are available; for Hessians write the function in plain torch "
            "operations on dense matrices"
        )


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.count = count
        return value.clone()

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        known = ctx.saved_tensors[ctx.count :]
        return (None, None, *(grad.to(g.dtype) * g for g in known), *(None for _ in known))


def with_gradient(value: Tensor, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """``value`` as a differentiable function of ``inputs`` with the gradients given.

    Args:
        value (): detached scalar.
        inputs: tensors the scalar depends on; gradients flow on into their own graphs.
        gradients: d value / d input, each of its input's shape.

    Returns:
        (): equal to ``value``. First derivatives only: second ones raise NotAvailable.
    """
    out = _KnownGradient.apply(value, len(inputs), *inputs, *gradients)
    assert isinstance(out, Tensor)
    return out
