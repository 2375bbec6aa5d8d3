"""Random frequencies drawn farther out than the spectral density has them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from gpx.bases.counter_random import words_at
from gpx.errors import ConfigError, class_name
from gpx.kernels import RBF, Kernel, Scale
from gpx.kernels.matern import Matern

SPREAD_STREAM = 0x53505244
"""Stream of the factors, which makes them independent of the normals of the same seed."""

SECOND_MOMENT = 1.75
"""Mean square weight that ``automatic_spread`` accepts for a squared exponential: 4 of 7
frequencies count. On kin40k (8 inputs, 1,200 to 3,000 rows, m = 2.7 n) spreads of 1.1 to 1.4
lower the error of exact inference, those around 1.25, which this is there, the most. Run folders
hold "auto" and not the factors: another number here is another basis for them."""

LEAST_WEIGHT = 1e-8
"""Smaller weights are raised to this, so that their inverses, which are prior precisions, do not
overflow in any dtype."""

LEAST_SHARE = 0.05
"""A warning is given when fewer than this share of the functions carry the prior variance: such a
spread is hardly intended."""

ROUGH_SPREADS = (1.0, 8.0, 8.0, 8.0)
"""Factors of Matern kernels, whose spectrum has no scale of its own. The quarter of frequencies
that is not moved keeps every weight below four. As with SECOND_MOMENT, run folders rely on these
numbers."""


def spread_of(
    spread: Literal["auto"] | float | Sequence[float], kernel: nn.Module
) -> tuple[float, ...]:
    """The factors of ``spread``, a tuple; with ``auto`` those of ``automatic_spread``.

    Raises:
        ConfigError: none, or one that is no number, below one or not finite.
    """
    if isinstance(spread, str):
        if spread != "auto":
            raise ConfigError(f"spread={spread}: expected auto or factors, at least one")
        return automatic_spread(kernel)
    factors = tuple(spread) if isinstance(spread, Sequence) else (spread,)
    numbers = [f for f in factors if isinstance(f, int | float) and not isinstance(f, bool)]
    fits = len(numbers) == len(factors) > 0 and all(1.0 <= f < math.inf for f in numbers)
    if not fits:
        raise ConfigError(
            f"spread={spread}: expected factors of frequencies, each a finite number of at least 1"
        )
    return tuple(float(f) for f in numbers)


def _known_inputs(kernel: nn.Module) -> tuple[nn.Module, int]:
    """``kernel`` without scales, and its inputs; 0 unless RBF or Matern that know theirs."""
    while isinstance(kernel, Scale):
        kernel = kernel.kernel
    if not isinstance(kernel, RBF | Matern):
        return kernel, 0
    return kernel, kernel.ard_num_dims or 0


def check_spreadable(kernel: nn.Module) -> None:
    """Raise ConfigError unless longer normals are frequencies farther out by the same factor.

    That is so where a frequency is its normals over the lengthscales, as for RBF and Matern; a
    spectral mixture has centres, which would stay.
    """
    kernel, inputs = _known_inputs(kernel)
    if not inputs:
        name = class_name(kernel)
        raise ConfigError(
            "spread of random frequencies needs kernel=RBF(), Matern12(), Matern32() or Matern52() "
            "with "
            f"ard_num_dims (one lengthscale per input), got {name}; set spread=1"
        )


def drawn_spreads(seed: int, indices: Tensor, spread: Sequence[float]) -> Tensor:
    """The factor of each frequency of ``indices`` (r,), float64: random, from (seed, index).

    Factors in turn would be bound up with the digits of quasi-Monte-Carlo points.
    """
    factors = torch.tensor(spread, dtype=torch.float64, device=indices.device)
    return factors[words_at(seed, SPREAD_STREAM, indices)[0] % len(spread)]


@torch.no_grad()
def spread_weights(kernel: nn.Module, frequencies: Tensor, spread: Sequence[float]) -> Tensor:
    """Weights p / q of frequencies drawn from q, the mean of densities spread by the factors.

    With p the spectral density of ``kernel`` normalised and q(w) = mean_c p(w / c) / c^d, features
    of frequencies from q weighted by p / q have the kernel as their mean. Weights are below the
    number of factors if one of them is one, and free of lengthscales and outputscale if
    frequencies move with the lengthscales (``check_spreadable``).

    Args:
        kernel: with a spectral density.
        frequencies (r, d): angular, drawn from q.
        spread: factors c, each for an equal share of the frequencies.

    Returns:
        (r,) float64, of mean one under q; LEAST_WEIGHT at least.

    Raises:
        ConfigError: the kernel has no spectral density.

    Source: balance heuristic of multiple importance sampling (Veach and Guibas 1995).
    """
    density = cast(Kernel, kernel).log_spectral_density
    omega, inputs = frequencies.double() / (2.0 * math.pi), frequencies.shape[1]
    wide = [density(omega / c).double() - inputs * math.log(c) for c in spread]
    mixture = torch.stack(wide).logsumexp(0) - math.log(len(spread))
    return (density(omega).double() - mixture).exp().clamp_min(LEAST_WEIGHT)


def automatic_spread(kernel: nn.Module) -> tuple[float, ...]:
    """Factors for block solves of Gaussian data of small noise, from the kind of kernel.

    Squared exponential in d inputs: c with c^2 / sqrt(2 c^2 - 1) = SECOND_MOMENT^(1 / d), the
    exact mean square weight. Matern: ROUGH_SPREADS. Other kernels, or a kernel that does not know
    its inputs: one.
    """
    kernel, inputs = _known_inputs(kernel)
    if not inputs:
        return (1.0,)
    if isinstance(kernel, Matern):
        return ROUGH_SPREADS
    moment = SECOND_MOMENT ** (1.0 / inputs)
    return (math.sqrt(moment**2 + moment * math.sqrt(moment**2 - 1.0)),)


def carrying_share(weights: Tensor) -> float:
    """Share of n functions that carries the prior, from their weights (n,) of mean one.

    (sum w)^2 / (n sum w^2), as of that many equal ones; the mean itself where it is less, because
    none of those drawn is where the weight is.
    """
    mean = weights.mean()
    return float(torch.minimum(mean, mean.square() / weights.square().mean()))


def warn_of_wide_spread(spread: Sequence[float], weights: Tensor, num_basis: int) -> None:
    """Warn where frequencies are drawn so far out that hardly any are where the kernel's are.

    Args:
        spread: the factors.
        weights: prior variances of some of the functions.
        num_basis: functions in all.
    """
    share = carrying_share(weights)
    if share < LEAST_SHARE:
        warnings.warn(
            f"spread={tuple(spread)}: about {share * num_basis:.0f} of {num_basis} functions carry "
            "the prior, the others lie beyond the kernel's spectrum; take smaller factors, or auto",
            stacklevel=4,
        )
