"""Draws of posteriors: normal values, and functions to be evaluated again and again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.errors import NotAvailable, class_name
from gpx.means.base import Mean
from gpx.methods.base.gradients import wants_gradient
from gpx.tensor_checks import check_inputs

if TYPE_CHECKING:
    from gpx.methods.base.posterior import Posterior


def normal_draws(covariance: Tensor, num: int, *, generator: torch.Generator) -> Tensor:
    """``num`` draws (num, n) of N(0, covariance), float64 on the covariance's device.

    Args:
        covariance (n, n): eigenvalues below zero count as 0.

    Cost: O(n^3).
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    normals = torch.randn(
        num, len(values), generator=generator, dtype=torch.float64, device=generator.device
    )
    return (normals.to(values.device) * values.clamp_min(0.0).sqrt()) @ vectors.mT


def functions_by_blocks(
    posterior: Posterior,
    num: int,
    blocks: Callable[[Tensor], Iterable[Tensor]],
    mean: Mean | None = None,
) -> Callable[[Tensor], Tensor]:
    """Functions for ``sample_paths`` to return, evaluated block by block of rows.

    They refuse the inputs that ``predict`` refuses: features may take inputs of another width, and
    would then be other functions.

    Args:
        posterior: whose functions they are.
        num: how many.
        blocks: x (n, d) -> their values (num, b) at each block of rows in turn.
        mean: prior mean function, which is added; None: zero.
    """

    @sampled_functions(posterior)
    def paths(x: Tensor) -> Tensor:
        check_inputs(posterior, x, posterior.num_inputs)
        values, filled = x.new_empty(num, len(x)), 0
        for part in blocks(x):  # one is held at a time: the values may be as large as memory allows
            values[:, filled : filled + part.shape[1]] = part
            filled += part.shape[1]
        return values if mean is None else values.add_(mean(x))

    return paths


def sampled_functions(
    posterior: Posterior,
) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Let functions that ``sample_paths`` returns keep a graph only if x requires a gradient.

    They raise NotAvailable if x does and their values carry none.
    """

    def decorate(functions: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return functools.wraps(functions)(lambda x: values_of_functions(posterior, functions, x))

    return decorate


def values_of_functions(
    posterior: Posterior, functions: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """``functions(x)``, as ``sampled_functions`` has them."""
    wanted = wants_gradient(x)
    with torch.set_grad_enabled(wanted):
        found = functions(x)
    if wanted and len(x) and not found.requires_grad:
        raise NotAvailable(
            f"{class_name(posterior)}: functions drawn from it carry no gradient with respect to "
            "x; without need of one, give x.detach()"
        )
    return found
