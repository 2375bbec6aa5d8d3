"""Whether several Markov chains have found the same law, and how many draws they are worth."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.sampling.langevin import autocovariance

LEAST = 4
"""Draws of a chain below which nothing can be said."""


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
    """Halves of chains as chains of their own: (T, C, k) -> (T // 2, 2 C, k)."""
    half = draws.shape[0] // 2
    return torch.cat([draws[:half], draws[draws.shape[0] - half :]], 1)


def potential_scale_reduction(draws: Tensor) -> Tensor:
    """R-hat of each quantity: rank-normalised, split, the larger of bulk and folded.

    One where all halves of all chains have the same law; above 1.01 they do not yet.

    Args:
        draws (T, C, k): T states of C chains in the order they were made, k quantities.

    Returns:
        (k,); NaN for fewer than 4 states, 1 for a quantity that never moves.

    Source: Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, sections 3.1 and 4.
    """
    if draws.shape[0] < LEAST:
        return draws.new_full((draws.shape[2],), torch.nan, dtype=torch.float64)
    halves = split(draws.double())
    folded = (halves - halves.flatten(0, 1).median(0).values).abs()
    return torch.maximum(_reduction(rank_normalised(halves)), _reduction(rank_normalised(folded)))


def agreement(draws: Tensor) -> tuple[float, float] | None:
    """The largest R-hat and the smallest bulk effective sample size of all quantities that move.

    Args:
        draws (T, C, k): as for ``potential_scale_reduction``.

    Returns:
        both; None where nothing moves.
    """
    moving = draws[:, :, ((draws - draws[:1, :1]) != 0.0).flatten(0, 1).any(0)]
    if not moving.numel():
        return None
    reduction = potential_scale_reduction(moving).max()
    return float(reduction), float(bulk_effective_sample_size(moving).min())


def _reduction(draws: Tensor) -> Tensor:
    count = draws.shape[0]
    within = draws.var(0).mean(0)
    between = draws.mean(0).var(0)  # over chains; B / T of the source
    still = within <= 0.0
    ratio = ((count - 1) / count * within + between) / torch.where(still, 1.0, within)
    return torch.where(still & (between > 0.0), torch.inf, torch.where(still, 1.0, ratio.sqrt()))


def bulk_effective_sample_size(draws: Tensor) -> Tensor:
    """Independent draws that would tell the location of each quantity as exactly as all chains do.

    T C / tau of rank-normalised split chains, tau from their autocorrelations and from how far
    their means lie apart (Geyer's initial monotone sequence).

    Args:
        draws (T, C, k): as for ``potential_scale_reduction``.

    Returns:
        (k,); NaN for fewer than 4 states; T C for a quantity that never moves.

    Cost: O(k C T log T).
    Source: Vehtari et al. 2021, section 3.2, equations 10 to 13.
    """
    if draws.shape[0] < LEAST:
        return draws.new_full((draws.shape[2],), torch.nan, dtype=torch.float64)
    scores = rank_normalised(split(draws.double()))
    count, chains, k = scores.shape
    covariance = autocovariance(scores.flatten(1)).view(count, chains, k) / count
    within = (covariance[0] * count / (count - 1)).mean(0)
    total = (count - 1) / count * within + scores.mean(0).var(0)
    still = total <= 0.0
    correlation = 1.0 - (within - covariance.mean(1)) / torch.where(still, 1.0, total)
    correlation[0] = 1.0
    pairs = correlation[: count // 2 * 2].view(-1, 2, k).sum(1)
    positive = torch.cumprod((pairs > 0.0).to(pairs), dim=0)
    monotone = torch.cummin(pairs, dim=0).values * positive
    draws_in_all = float(count * chains)
    # antithetic chains are worth more than independent draws, but not without limit
    least = 1.0 / torch.tensor(draws_in_all).log10()
    time = (2.0 * monotone.sum(0) - 1.0).clamp_min(float(least))
    return torch.where(still, draws_in_all, draws_in_all / time)
