"""Gradients of several tensors with given weights, without what torch imports for weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.linalg.known_gradient import first_derivative_only


def gradients_with_weights(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of sum_k sum(weights_k outputs_k), whose graph stays.

    They are those of ``torch.autograd.grad(outputs, inputs, weights)``, to the bit. On a CPU the
    weights enter through a function of their own, as torch compares shapes of ``grad_outputs`` by
    a package for symbolic algebra: to import it took 0.6 s of a run of 3.8.

    Args:
        outputs: tensors of any shape.
        inputs: what is differentiated for.
        weights: of the shapes of ``outputs``.

    Returns:
        for every input its gradient, None where no output depends on it.
    """
    if outputs[0].device.type == "cpu":
        with torch.enable_grad():
            joined = _Weighted.apply(tuple(weights), *outputs)
        return torch.autograd.grad(joined, inputs, allow_unused=True, retain_graph=True)
    return torch.autograd.grad(
        outputs, inputs, grad_outputs=weights, allow_unused=True, retain_graph=True
    )


class _Weighted(torch.autograd.Function):
    """Zero, with the weights as its gradients by the outputs."""

    @staticmethod
    def forward(ctx: Any, weights: tuple[Tensor, ...], *outputs: Tensor) -> Tensor:
        ctx.weights = weights
        return outputs[0].new_zeros(())

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (None, *ctx.weights)
