"""Whether what a kernel says of its derivatives agrees with difference quotients of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.kernels.derivatives.base import no_derivatives

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel

STEP = 1e-3
"""Steps of the differences that derivatives are checked by, in lengthscales of the kernel."""
AGREEMENT = 0.1
"""Relative difference from them that is allowed; a Matern-3/2 kernel has some thousandths."""


@torch.no_grad()
def check_derivatives(kernel: Kernel, x: Tensor, inputs: Sequence[int]) -> None:
    """Raise ConfigError unless ``derivatives`` of the kernel are those of its covariance.

    The variance of every derivative is compared with a difference quotient of the covariance at
    rows next to each other, which has no limit where the functions are not differentiable.

    Args:
        x (n, d): few inputs; a GPU is waited for.
        inputs: columns by which is differentiated.

    Cost: four values of the kernel for every input and row.
    """
    if not len(x):
        return
    exact = _in_double(kernel)
    at = x.detach().double()
    found = exact.derivatives(at, at)
    value = found.entry(None, None)
    for i in inputs:
        variance = found.entry(i, i)
        step = torch.zeros_like(at)
        # a lengthscale is that distance over which correlations of the derivative change
        length = (value / variance.abs().clamp_min(1e-12)).abs().sqrt().clamp(1e-3, 1e3)
        step[:, i] = STEP * torch.where(length.isfinite(), length, 1.0)
        ends = at + 0.5 * step, at - 0.5 * step
        values = [exact.pairs(a, b) for a in ends for b in ends]
        quotient = (values[0] - values[1] - values[2] + values[3]) / step[:, i].square()
        scale = torch.maximum(variance.abs(), 1e-6 * value.abs())
        if bool(((quotient - variance).abs() <= AGREEMENT * scale).all()):
            continue
        raise no_derivatives(
            kernel,
            f"it says that of input {i} has the variance {float(variance[0]):.3g}, and difference "
            f"quotients of its functions have {float(quotient[0]):.3g}",
        )


def _in_double(kernel: Kernel) -> Kernel:
    """The kernel, or a copy of it in float64."""
    if all(p.dtype == torch.float64 for p in kernel.parameters()):
        return kernel
    return copy.deepcopy(kernel).double()
