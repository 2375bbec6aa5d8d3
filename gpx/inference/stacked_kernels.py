"""Covariance matrices of many kernels of one form, each with its own hyperparameters and inputs.

The kernels are one template, whose parameters are replaced by stacks of b values. Stationary
kernels with a fused profile, and sums, products and multiples of any kernels, are evaluated as
batches; every other kernel by ``torch.vmap`` of its own code, or one after the other where that
cannot take it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from gpx.backends.entries import call_with
from gpx.constraints import positive_parameters
from gpx.inference.batched_covariance import MIN_SQUARED_DISTANCE, fused_profile
from gpx.kernels.algebra import Product, Scale, Sum
from gpx.kernels.base import Kernel
from gpx.kernels.distances import is_trained
from gpx.kernels.fused import stationary_covariance
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.stationary import Stationary

Stacks = Mapping[int, Tensor]
"""Stacks (b, ...) of unconstrained parameters, by ``id`` of the template's parameter."""


def stacked_covariances(
    kernel: Kernel, stacks: Stacks, left: Tensor, right: Tensor | None = None
) -> Tensor:
    """Matrices (b, p, q) of b kernels, differentiable in the stacks.

    Args:
        kernel: the template.
        stacks: the values of all its parameters.
        left (b, p, d), right (b, q, d): inputs of each; None: the square matrices of ``left``.

    Cost: b p q kernel entries.
    """
    if isinstance(kernel, (Sum, Product)) and computes_as(kernel, Sum, Product):
        return cast(
            Tensor,
            kernel._combine([stacked_covariances(k, stacks, left, right) for k in kernel.parts]),
        )
    if isinstance(kernel, Scale) and computes_as(kernel, Scale):
        scale = _natural(kernel, "scale", stacks)
        return scale[:, None, None] * stacked_covariances(kernel.kernel, stacks, left, right)
    if (
        isinstance(kernel, Stationary)
        and fused_profile(kernel) is not None
        and type(kernel).coordinates is Stationary.coordinates
    ):
        return _stationary(kernel, stacks, left, right)
    if kernel.has_formula:

        def entries(own: Kernel, rows: Tensor, *columns: Tensor) -> Any:
            return own.formula(_squared_distance, rows, *(columns or (rows,)))

    else:

        def entries(own: Kernel, rows: Tensor, *columns: Tensor) -> Any:
            return own.evaluate(rows, *columns)

    # an exported torch.cat under vmap is for one number of rows
    one_by_one = torch.compiler.is_exporting()
    inputs = (left,) if right is None else (left, right)
    return mapped(kernel, stacks, entries, *inputs, one_by_one=one_by_one)


def stacked_diagonals(kernel: Kernel, stacks: Stacks, x: Tensor) -> Tensor:
    """k(x, x) (b, p) of b kernels at inputs x (b, p, d), as ``stacked_covariances``."""
    return mapped(kernel, stacks, lambda own, rows: own.diagonal(rows), x)


def mapped(
    module: nn.Module,
    stacks: Stacks,
    function: Callable[..., Tensor],
    *args: Tensor,
    one_by_one: bool = False,
) -> Tensor:
    """``function(module, *args)`` of b modules of one form, stacked; differentiable in the stacks.

    Args:
        module: the template.
        stacks: the values of all its parameters.
        args (b, ...): of each.
        one_by_one: without ``torch.vmap``.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    values = {name: stacks[own] for own, name in names.items()}

    def one(own: Mapping[str, Tensor], *rows: Tensor) -> Tensor:
        return call_with(module, own, function, *rows)

    try:
        if not one_by_one:
            with warnings.catch_warnings():  # of operations that vmap takes one after the other
                warnings.filterwarnings("ignore", message="There is a performance drop")
                return torch.vmap(one)(values, *args)
    except (RuntimeError, ValueError) as refused:  # what vmap cannot take
        if isinstance(refused, torch.OutOfMemoryError):
            raise
    each = [
        one({name: value[i] for name, value in values.items()}, *(part[i] for part in args))
        for i in range(len(args[0]))
    ]
    return torch.stack(each)


def _natural(module: nn.Module, name: str, stacks: Stacks) -> Tensor:
    """The natural values (b, ...) of a positive parameter; of a constant () itself."""
    for known in positive_parameters(module, below=False):
        if known.name == name:
            found: Tensor = known.constraint(stacks[id(known.raw)])
            return found
    return cast(Tensor, getattr(module, name))


def _stationary(kernel: Stationary, stacks: Stacks, left: Tensor, right: Tensor | None) -> Tensor:
    """In one pass over memory, with the gradient written by hand."""
    lengthscale = _natural(kernel, "lengthscale", stacks)
    scale = _natural(kernel, "outputscale", stacks)
    profile = fused_profile(kernel)
    assert profile is not None

    def coordinates(x: Tensor) -> Tensor:
        chosen = x if kernel.active_dims is None else x.index_select(2, kernel.active_dims)
        kernel._check_columns(chosen[0])
        return chosen / lengthscale.view(len(lengthscale), 1, -1)

    z1 = coordinates(left)
    z2 = z1 if right is None else coordinates(right)
    scale = (scale if scale.ndim else scale.expand(len(left))).view(-1, 1, 1)
    return stationary_covariance(z1, z2, scale, profile, guarded=not is_trained(kernel))


def _squared_distance(z1: Tensor, z2: Tensor) -> Tensor:
    """``|z1_i - z2_j|^2`` (p, q) in operations that ``torch.vmap`` takes, above zero."""
    origin = z2.detach().mean(-2, keepdim=True) if z2.shape[-2] else 0.0
    z1, z2 = z1 - origin, z2 - origin
    # shrunk by the rounding error, so that the distance of coincident inputs is clamped to zero
    shrink = 1.0 - 4.0 * torch.finfo(z1.dtype).eps
    norm1, norm2 = z1.square().sum(-1) * shrink, z2.square().sum(-1) * shrink
    cross = norm1.unsqueeze(-1) + norm2.unsqueeze(-2) - 2.0 * (z1 @ z2.mT)
    return cross.clamp_min(MIN_SQUARED_DISTANCE)
