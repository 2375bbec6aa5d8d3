"""Random frequencies stretched beyond the kernel's spectral density, and their weights."""

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
from gpx.tensor_checks import is_number
from gpx.warned_line import users_line

SPREAD_STREAM = 0x53505244
"""Stream of the factors, which makes them independent of the normals of the same seed."""

SECOND_MOMENT = 1.75
"""Mean square weight of ``automatic_spread`` for a squared exponential: 4 of 7 frequencies are
effective. Run folders store "auto", not the factors: changing this number changes their basis."""

MIN_WEIGHT = 1e-8
"""Weights are clamped to this, so that prior precisions do not overflow in any dtype."""

MIN_CARRYING_SHARE = 0.05
"""A warning is given when the effective share of the functions is below this."""

MATERN_SPREADS = (1.0, 8.0, 8.0, 8.0)
"""Factors for Matern kernels, whose spectra have heavy tails. The quarter of frequencies that is
not stretched keeps every weight below four. Run folders rely on these numbers, too."""


def resolve_spread(
    spread: Literal["auto"] | float | Sequence[float], kernel: nn.Module
) -> tuple[float, ...]:
    """The factors of ``spread`` as a tuple; for ``auto`` those of ``automatic_spread``.

    Raises:
        ConfigError: no factors, or one that is not a finite number of at least one.
    """
    if isinstance(spread, str):
        if spread != "auto":
            raise ConfigError(f"spread={spread}: expected auto or factors, at least one")
        return automatic_spread(kernel)
    factors = tuple(spread) if isinstance(spread, Sequence) else (spread,)
    numbers = [f for f in factors if is_number(f)]
    fits = len(numbers) == len(factors) > 0 and all(1.0 <= f < math.inf for f in numbers)
    if not fits:
        raise ConfigError(
            f"spread={spread}: expected factors of frequencies, each a finite number of at least 1"
        )
    return tuple(float(f) for f in numbers)


def _known_inputs(kernel: nn.Module) -> tuple[nn.Module, int]:
    """``kernel`` without scales, and ``ard_num_dims`` of an RBF or Matern kernel, else 0."""
    while isinstance(kernel, Scale):
        kernel = kernel.kernel
    if not isinstance(kernel, RBF | Matern):
        return kernel, 0
    return kernel, kernel.ard_num_dims or 0


def check_spreadable(kernel: nn.Module) -> None:
    """Raise ConfigError unless scaling the normals scales the frequencies by the same factor.

    True for RBF and Matern, not for a spectral mixture, whose centres would stay.
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

    Cycling through the factors would correlate them with the digits of quasi-Monte-Carlo points.
    """
    factors = torch.tensor(spread, dtype=torch.float64, device=indices.device)
    return factors[words_at(seed, SPREAD_STREAM, indices)[0] % len(spread)]


@torch.no_grad()
def spread_weights(kernel: nn.Module, frequencies: Tensor, spread: Sequence[float]) -> Tensor:
    """Weights p / q of frequencies drawn from q, the mean of densities stretched by the factors.

    With p the normalised spectral density of ``kernel`` and q(w) = mean_c p(w / c) / c^d, features
    of frequencies from q weighted by p / q have the kernel as their mean. Weights are below the
    number of factors if one of them is one. They do not depend on lengthscales and outputscale if
    frequencies scale with the lengthscales (``check_spreadable``).

    Args:
        kernel: with a spectral density.
        frequencies (r, d): angular, drawn from q.
        spread: factors c, each for an equal share of the frequencies.

    Returns:
        (r,) float64, at least MIN_WEIGHT, of mean one under q.

    Raises:
        ConfigError: the kernel has no spectral density.

    Source: balance heuristic of multiple importance sampling (Veach and Guibas 1995).
    """
    density = cast(Kernel, kernel).log_spectral_density
    omega, inputs = frequencies.double() / (2.0 * math.pi), frequencies.shape[1]
    wide = [density(omega / c).double() - inputs * math.log(c) for c in spread]
    mixture = torch.stack(wide).logsumexp(0) - math.log(len(spread))
    return (density(omega).double() - mixture).exp().clamp_min(MIN_WEIGHT)


def automatic_spread(kernel: nn.Module) -> tuple[float, ...]:
    """Factors for block solves of Gaussian data of small noise, by the kind of kernel.

    Squared exponential in d inputs: c with c^2 / sqrt(2 c^2 - 1) = SECOND_MOMENT^(1 / d), the
    exact mean square weight. Matern: MATERN_SPREADS. Other kernels, or without ``ard_num_dims``:
    one.
    """
    kernel, inputs = _known_inputs(kernel)
    if not inputs:
        return (1.0,)
    if isinstance(kernel, Matern):
        return MATERN_SPREADS
    moment = SECOND_MOMENT ** (1.0 / inputs)
    return (math.sqrt(moment**2 + moment * math.sqrt(moment**2 - 1.0)),)


def effective_share(weights: Tensor) -> float:
    """Effective share of n functions, from their weights (n,) of expected mean one.

    (sum w)^2 / (n sum w^2), or the mean weight where that is less, as if no sampled function lies
    where the weights are large.
    """
    mean = weights.mean()
    return float(torch.minimum(mean, mean.square() / weights.square().mean()))


def warn_of_wide_spread(spread: Sequence[float], weights: Tensor, num_basis: int) -> None:
    """Warn if frequencies are stretched so far that hardly any lie within the kernel's spectrum.

    Args:
        spread: the factors.
        weights: prior variances of some of the functions.
        num_basis: functions in all.
    """
    share = effective_share(weights)
    if share < MIN_CARRYING_SHARE:
        warnings.warn(
            f"spread={tuple(spread)}: about {share * num_basis:.0f} of {num_basis} functions carry "
            "the prior, the others lie beyond the kernel's spectrum; take smaller factors, or auto",
            stacklevel=users_line(),
        )
