"""Effective sample sizes of Markov chains, and R-hat of several chains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.linalg.running_sum import kth_smallest

MIN_DRAWS = 4
"""Shortest chain for which the diagnostics are defined."""


def rank_normalised(draws: Tensor) -> Tensor:
    """Normal scores of the ranks among all draws of a quantity: (T, C, k) -> the same.

    Ties share their mean rank. Source: Vehtari et al. 2021, equation 14.
    """
    count, chains, k = draws.shape
    flat = draws.double().reshape(count * chains, k)
    ordered = flat.mT.contiguous().sort(1).values
    below = torch.searchsorted(ordered, flat.mT.contiguous(), side="left")
    up_to = torch.searchsorted(ordered, flat.mT.contiguous(), side="right")
    rank = 0.5 * (below + 1 + up_to).double()
    score = torch.special.ndtri((rank - 0.375) / (count * chains + 0.25))
    return score.mT.reshape(count, chains, k)


def split(draws: Tensor) -> Tensor:
    """Each chain split into two halves: (T, C, k) -> (T // 2, 2 C, k)."""
    half = draws.shape[0] // 2
    return torch.cat([draws[:half], draws[draws.shape[0] - half :]], 1)


def potential_scale_reduction(draws: Tensor) -> Tensor:
    """R-hat of each quantity: rank-normalised, split, the larger of bulk and folded.

    One if all halves of all chains have the same distribution; above 1.01 they have not converged.

    Args:
        draws (T, C, k): T consecutive states of C chains, k quantities.

    Returns:
        (k,); NaN for fewer than 4 states, 1 for a constant quantity.

    Source: Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, sections 3.1 and 4.
    """
    if draws.shape[0] < MIN_DRAWS:
        return draws.new_full((draws.shape[2],), torch.nan, dtype=torch.float64)
    halves = split(draws.double())
    every = halves.flatten(0, 1).mT
    folded = (halves - kth_smallest(every, (every.shape[1] + 1) // 2)).abs()  # from the median
    return torch.maximum(_reduction(rank_normalised(halves)), _reduction(rank_normalised(folded)))


def agreement(draws: Tensor) -> tuple[float, float] | None:
    """The largest R-hat and the smallest bulk effective sample size of all varying quantities.

    Args:
        draws (T, C, k): as for ``potential_scale_reduction``.

    Returns:
        both; None if all quantities are constant.
    """
    varying = draws[:, :, ((draws - draws[:1, :1]) != 0.0).flatten(0, 1).any(0)]
    if not varying.numel():
        return None
    reduction = potential_scale_reduction(varying).max()
    return float(reduction), float(bulk_effective_sample_size(varying).min())


def _reduction(draws: Tensor) -> Tensor:
    count = draws.shape[0]
    within = draws.var(0).mean(0)
    between = draws.mean(0).var(0)  # over chains; B / T of the source
    still = within <= 0.0
    ratio = ((count - 1) / count * within + between) / torch.where(still, 1.0, within)
    unmoved = torch.where(between > 0.0, torch.inf, 1.0)
    return torch.where(still, unmoved, ratio.sqrt())


def bulk_effective_sample_size(draws: Tensor) -> Tensor:
    """Number of independent draws that estimate the location of each quantity equally precisely.

    T C / tau of rank-normalised split chains, with tau from their autocorrelations and the
    variance of their means (Geyer's initial monotone sequence).

    Args:
        draws (T, C, k): as for ``potential_scale_reduction``.

    Returns:
        (k,); NaN for fewer than 4 states; T C for a constant quantity.

    Cost: O(k C T log T).
    Source: Vehtari et al. 2021, section 3.2, equations 10 to 13.
    """
    if draws.shape[0] < MIN_DRAWS:
        return draws.new_full((draws.shape[2],), torch.nan, dtype=torch.float64)
    scores = rank_normalised(split(draws.double()))
    count, chains, k = scores.shape
    covariance = autocovariance(scores.flatten(1)).view(count, chains, k) / count
    within = (covariance[0] * count / (count - 1)).mean(0)
    total = (count - 1) / count * within + scores.mean(0).var(0)
    constant = total <= 0.0
    correlation = 1.0 - (within - covariance.mean(1)) / torch.where(constant, 1.0, total)
    correlation[0] = 1.0
    num_draws = float(count * chains)
    # antithetic chains can be better than independent draws, but only up to this limit
    time = _autocorrelation_time(correlation).clamp_min(1.0 / math.log10(num_draws))
    return torch.where(constant, num_draws, num_draws / time)


def effective_sample_size(samples: Tensor) -> Tensor:
    """Number of independent draws that estimate the mean of each column equally precisely.

    T / tau with tau from the autocorrelations (Geyer's initial monotone sequence).

    Args:
        samples (T, k): consecutive states of one chain.

    Returns:
        (k,), at most T; 0 for T < 4; 1 for a constant column.

    Cost: O(k T log T).
    Source: Geyer 1992.
    """
    count = samples.shape[0]
    if count < MIN_DRAWS:
        return samples.new_zeros(samples.shape[1])
    covariance = autocovariance(samples)
    constant = covariance[0] <= 1e-24 * samples.double().square().sum(0)
    time = _autocorrelation_time(covariance / torch.where(constant, 1.0, covariance[0]))
    return torch.where(constant, 1.0, count / time.clamp_min(1.0))


def _autocorrelation_time(correlation: Tensor) -> Tensor:
    """1 + 2 sum of correlations (T, k) over the positive lags: (k,).

    The sum ends at the first negative pair of lags and uses a decreasing bound of the pairs.
    """
    pairs = correlation[: len(correlation) // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = torch.cumprod((pairs > 0.0).to(pairs), dim=0)
    monotone = torch.cummin(pairs, dim=0).values * positive
    return 2.0 * monotone.sum(0) - 1.0


def autocovariance(samples: Tensor) -> Tensor:
    """sum_s (u_s - mean) (u_{s + t} - mean) of each column for every lag t: (T, k) -> (T, k).

    Cost: O(k T log T).
    """
    count = samples.shape[0]
    centred = samples.double() - samples.double().mean(0)
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=0)
    return torch.fft.irfft(spectrum.abs().square(), n=2 * count, dim=0)[:count]
