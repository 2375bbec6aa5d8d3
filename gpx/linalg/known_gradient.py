"""Gradients worked out by hand, in the graph of autograd.

Second derivatives are refused, or computed through the same function in operations of torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.errors import NotAvailable

Backward = Callable[..., Any]

Again = Callable[[Any, Tensor], tuple[Tensor, Sequence[Tensor | None]] | None]
"""Maps the context of a function and the gradient with respect to its result to the result,
computed again in differentiable operations of torch, and for every argument of ``forward`` the view
of it that was used (None for arguments that are no tensor or have no gradient). None: the result
cannot be computed in this way."""


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


def twice_differentiable(again: Again) -> Callable[[Backward], Backward]:
    """A decorator of a ``backward`` whose results are differentiable, through what ``again`` gives.

    ``again`` is called with ``create_graph=True`` only. Views, not the tensors themselves, stand
    for the arguments, since one may have been computed from another. Where it gives None, results
    are as of ``first_derivative_only``.
    """

    def decorate(backward: Backward) -> Backward:
        once = first_derivative_only(backward)

        @functools.wraps(backward)
        def twice(ctx: Any, grad: Tensor) -> Any:
            found = again(ctx, grad) if torch.is_grad_enabled() else None
            if found is None:
                return once(ctx, grad)
            result, views = found
            wanted = [view for view in views if view is not None and view.requires_grad]
            gradients = iter(
                torch.autograd.grad(result, wanted, grad, create_graph=True, allow_unused=True)
            )
            return tuple(
                next(gradients) if view is not None and view.requires_grad else None
                for view in views
            )

        return twice

    return decorate


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


def _value_again(ctx: Any, _: Tensor) -> tuple[Tensor, Sequence[Tensor | None]] | None:
    if ctx.again is None:
        return None
    views = [tensor.view_as(tensor) for tensor in ctx.saved_tensors[: ctx.count]]
    return ctx.again(*views), (None, None, None, *views, *[None] * ctx.count)


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, count: int, again: Callable[..., Tensor] | None, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.count, ctx.again = count, again
        return value.clone()

    @staticmethod
    @twice_differentiable(_value_again)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        known = ctx.saved_tensors[ctx.count :]
        return (None, None, None, *(grad.to(g.dtype) * g for g in known), *(None for _ in known))


def with_gradient(
    value: Tensor,
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    again: Callable[..., Tensor] | None = None,
) -> Tensor:
    """``value`` as a differentiable function of ``inputs`` with the gradients given.

    Args:
        value (): detached scalar.
        inputs: tensors the scalar depends on; gradients flow on into their own graphs.
        gradients: d value / d input, each of its input's shape.
        again: ``inputs`` -> the scalar, in differentiable operations, for second derivatives.

    Returns:
        (): equal to ``value``. Without ``again`` second derivatives raise NotAvailable.
    """
    out = _KnownGradient.apply(value, len(inputs), again, *inputs, *gradients)
    assert isinstance(out, Tensor)
    return out
