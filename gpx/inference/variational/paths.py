"""Sampled functions of q(u): prior functions corrected at the inducing points."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.means.zero import Zero
from gpx.sampling import SHARED, ConditionedFunctions, Frequencies, prior_functions


@torch.no_grad()
def conditioned_paths(
    kernel: Kernel,
    inducing: Tensor,
    inverse_cholesky: Tensor,
    mean: Tensor,
    factor: Tensor,
    num: int,
    *,
    generator: torch.Generator,
    frequencies: Frequencies = SHARED,
) -> ConditionedFunctions:
    """Functions f(x) = prior(x) + K_xz K_zz^{-1} (u - prior(Z)), u ~ q: x (n, d) -> (num p, n).

    The p latent functions of one draw are consecutive; no mean function is added. The mean is
    exact; the variance away from Z is that of the prior's random features.

    Args:
        kernel: with random Fourier features.
        inducing (M, d), inverse_cholesky (M, M): Z and L^{-1}, L L^T = K_zz.
        mean (p, M), factor (p, M, M): of q(v), u = L v.
        num: draws of all p functions.
        generator: on the kernel's device.
        frequencies: of the random features: their number, and whether paths share them.

    Raises:
        ConfigError: the kernel has no random Fourier features.

    Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", 2020.
    """
    latents, size = mean.shape
    prior = prior_functions(
        kernel,
        num * latents,
        inducing.shape[1],
        generator=generator,
        frequencies=frequencies,
    )
    noise = mean.new_empty(num, latents, size, 1).normal_(generator=generator)
    v = (mean.unsqueeze(-1) + factor @ noise).reshape(num * latents, size)
    weights = (v - prior(inducing) @ inverse_cholesky.mT) @ inverse_cholesky
    return ConditionedFunctions(prior, weights, inducing, kernel, Zero())
