"""Functions drawn from a stationary prior, as sums of random waves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.base import Kernel

NUM_FREQUENCIES = 2048
"""Random frequencies shared by the drawn functions; covariance error about 1/sqrt of it."""


@torch.no_grad()
def prior_functions(
    kernel: Kernel,
    num: int,
    num_inputs: int,
    *,
    generator: torch.Generator,
    num_frequencies: int = NUM_FREQUENCIES,
) -> Callable[[Tensor], Tensor]:
    """``num`` zero-mean functions of approximately this covariance: x (n, d) -> (num, n).

    f(x) = sqrt(k(0) / F) sum_i a_i cos(w_i . x) + b_i sin(w_i . x) with standard normal a, b and F
    spectral frequencies w. The covariance over draws is a Monte Carlo estimate of the kernel.

    Args:
        kernel: stationary, with a spectral sampler; gives dtype and device.
        num: functions.
        num_inputs: d.
        generator: on the kernel's device.
        num_frequencies: F.

    Raises:
        ConfigError: the kernel has no spectral sampler, or no function was asked for.

    Cost: O(F (d + num)) per row.
    """
    if num < 1:
        raise ConfigError(f"at least one function must be drawn, got {num}")
    like = next(kernel.parameters(), torch.empty(0))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)

    normals = normal(num_frequencies, kernel.num_spectral_normals(num_inputs))
    frequencies = kernel.spectral_frequencies(normals)
    origin = torch.zeros(1, num_inputs, dtype=like.dtype, device=like.device)
    scale = (kernel.diagonal(origin) / num_frequencies).sqrt()
    weights = normal(num, 2 * num_frequencies) * scale

    @torch.no_grad()
    def functions(x: Tensor) -> Tensor:
        phase = frequencies @ x.mT
        return weights @ torch.cat([phase.cos(), phase.sin()])

    return functions
