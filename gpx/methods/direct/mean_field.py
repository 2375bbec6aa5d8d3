"""Exact expectations under independent discrete weights, from sums over the data.

m weights take one of k values each, so there are k^m hypotheses; for a likelihood that is quadratic
in the weights an expectation over them is a sum of m k terms and one product with an m x m matrix.

Source: Evans thesis, section 7.3 (theorem 7.1, where H must be with the square of the values).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.constants import LOG_TWO_PI
from gpx.linalg import running_sum


class SquaredError(NamedTuple):
    """E |r - Phi w|^2 and its derivatives.

    Attributes:
        value (...): the expectation.
        slope (..., m, k): derivative by the probabilities, of no constraint on their sums.
        moved (..., m, k): derivative by the values of the weights.
    """

    value: Tensor
    slope: Tensor
    moved: Tensor


def squared_error(
    statistics: SufficientStatistics, probabilities: Tensor, values: Tensor
) -> SquaredError:
    """E |r - Phi w|^2 of n rows under independent weights.

    With means s and variances v of the weights it is |r|^2 - 2 s.c + s^T A s + diag(A).v, for
    A = Phi^T Phi and c = Phi^T r.

    Args:
        statistics: of the rows, m functions.
        probabilities (..., m, k): q, of each weight.
        values (k,) or (m, k): of the weights.

    Cost: O(m^2 + m k), whatever n.
    """
    mean = (probabilities * values).sum(-1)
    variance = (probabilities * (values - mean.unsqueeze(-1)).square()).sum(-1)
    carried = mean @ statistics.gram
    diagonal = statistics.gram.diagonal()
    value = (
        statistics.squared
        + (mean * (carried - 2.0 * statistics.projected)).sum(-1)
        + variance @ diagonal
    )
    others = 2.0 * (carried - diagonal * mean - statistics.projected).unsqueeze(-1)
    own = diagonal.unsqueeze(-1) * values
    slope = (others + own) * values
    return SquaredError(value, slope, (others + 2.0 * own) * probabilities)


def cumulants(probabilities: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and third cumulant (..., m) of discrete variables.

    Args:
        probabilities (..., m, k): that sum to one.
        values (k,) or (m, k).
    """
    mean = (probabilities * values).sum(-1)
    off = values - mean.unsqueeze(-1)
    square = probabilities * off * off
    return mean, square.sum(-1), (square * off).sum(-1)


def negative_divergence(log_q: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """-KL(q || prior) (...) of discrete variables, and its derivative by their probabilities.

    Args:
        log_q (..., k), log_prior (k,): normalised and finite.
    """
    slope = log_prior - log_q
    return (log_q.exp() * slope).sum(-1), slope - 1.0


def by_logits(q: Tensor, slope: Tensor) -> Tensor:
    """Derivative by logits (..., k), q their softmax, from that by q."""
    return q * (slope - (q * slope).sum(-1, keepdim=True))


class NoiseTerms(NamedTuple):
    """What the noise variance s adds to the bound.

    Attributes:
        precision (): E 1 / s.
        constant (): -n E log(2 pi s) / 2.
        prior (): -KL of its distribution.
        log_q (k,): its distribution; empty where s is known.
    """

    precision: Tensor
    constant: Tensor
    prior: Tensor
    log_q: Tensor


def known_noise(variance: Tensor, num_data: Tensor) -> NoiseTerms:
    """Of a known noise variance () and n ()."""
    constant = -0.5 * num_data * (variance.log() + LOG_TWO_PI)
    return NoiseTerms(1.0 / variance, constant, variance.new_zeros(()), variance.new_zeros(0))


def discrete_noise(
    log_q: Tensor, values: Tensor, log_prior: Tensor, num_data: Tensor
) -> NoiseTerms:
    """Of a variance that takes ``values`` (k,) with probabilities exp(log_q) (k,); n ()."""
    q = log_q.exp()
    constant = -0.5 * num_data * (q @ values.log() + LOG_TWO_PI)
    return NoiseTerms(
        q @ values.reciprocal(), constant, negative_divergence(log_q, log_prior)[0], log_q
    )


def best_noise(error: Tensor, num_data: Tensor, values: Tensor, log_prior: Tensor) -> Tensor:
    """Logits (k,) of the noise variance that are best for E |r - Phi w|^2 = ``error`` (), n ()."""
    return log_prior - 0.5 * (num_data * values.log() + error / values)


class Bound(NamedTuple):
    """The evidence lower bound of regression on discrete weights; nats.

    Attributes:
        value (): fit + constant + weights + noise.
        fit (): -E |r - Phi w|^2 E 1/s / 2.
        constant (): -n E log(2 pi s) / 2.
        weights (), noise (): minus the divergences from the priors.
        by_logits (m, k), by_noise_logits (k_s,): gradient of the value.
        by_values (m, k): gradient of the fit in the values of each weight.
    """

    value: Tensor
    fit: Tensor
    constant: Tensor
    weights: Tensor
    noise: Tensor
    by_logits: Tensor
    by_noise_logits: Tensor
    by_values: Tensor


def bound(
    statistics: SufficientStatistics,
    log_q: Tensor,
    values: Tensor,
    log_prior: Tensor,
    noise: NoiseTerms,
    noise_grid: tuple[Tensor, Tensor] | None = None,
) -> Bound:
    """log p(y) >= E log p(y | w, s) - KL, exactly, with its gradient in closed form.

    Args:
        statistics: of n rows.
        log_q (m, k), values (k,), log_prior (k,): of the weights.
        noise: of the noise variance.
        noise_grid: its values (k_s,) and log prior (k_s,), where it is not known.

    Cost: O(m^2 + m k + k_s), whatever n.
    """
    q = log_q.exp()
    error = squared_error(statistics, q, values)
    divergence, slope = negative_divergence(log_q, log_prior)
    fit = -0.5 * noise.precision * error.value
    total = divergence.sum()
    slope = slope - 0.5 * noise.precision * error.slope
    of_noise = noise.log_q
    if noise_grid is not None:
        variances, prior = noise_grid
        given = -0.5 * (statistics.num_data * variances.log() + error.value / variances)
        of_noise = by_logits(noise.log_q.exp(), given + negative_divergence(noise.log_q, prior)[1])
    return Bound(
        fit + noise.constant + total + noise.prior,
        fit,
        noise.constant,
        total,
        noise.prior,
        by_logits(q, slope),
        of_noise,
        -0.5 * noise.precision * error.moved,
    )


def swept(
    gram: Tensor,
    projected: Tensor,
    logits: Tensor,
    values: Tensor,
    log_prior: Tensor,
    precision: Tensor,
) -> Tensor:
    """Logits (m, k) after every weight in turn took its best distribution given the others.

    Args:
        gram (m, m), projected (m,): Phi^T Phi and Phi^T r.
        logits (m, k): to start from.
        values (k,), log_prior (k,): of every weight.
        precision (): expected precision of the noise.

    Cost: m (m + k), in m rounds of a few small operations, on the CPU whatever the device: a round
    waits for the one before, and m times as many kernels would cost more than copying the gram.
    """
    device = logits.device
    rows, target, levels, prior = (
        part.double().cpu().numpy() for part in (gram, projected, values, log_prior)
    )
    along = float(precision) * levels
    own = prior - 0.5 * np.outer(rows.diagonal(), along * levels)
    means = logits.double().cpu().softmax(-1).numpy() @ levels
    carried = rows @ means
    found = np.empty_like(own)
    for number, row in enumerate(rows):
        left = target[number] - carried[number] + row[number] * means[number]
        best = own[number] + left * along
        found[number] = best
        odds = np.exp(best - best.max())
        mean = (odds @ levels) / odds.sum()
        carried += (mean - means[number]) * row
        means[number] = mean
    return torch.from_numpy(found).to(device)


def drawn_codes(
    shares: Tensor, probabilities: Tensor, num: int, generator: torch.Generator
) -> Tensor:
    """Places of the values in ``num`` draws of a mixture of independent weights: (num, m), int64.

    Args:
        shares (r,), probabilities (r, m, k): of the mixture, float64.

    Cost: num m k; memory O(r m k + num m).
    """
    which = torch.multinomial(shares, num, replacement=True, generator=generator)
    edges = running_sum(probabilities, -1)[..., :-1]  # the last value takes what rounding left
    levels = torch.rand(
        num, probabilities.shape[1], 1, generator=generator, dtype=edges.dtype, device=edges.device
    )
    drawn = [(level >= edges[i]).sum(-1) for level, i in zip(levels, which, strict=True)]
    return torch.stack(drawn) if drawn else which.new_zeros(0, probabilities.shape[1])
