"""Exact expectations under independent discrete weights, from sums over the data.

m weights with k values each have k^m joint states. For a log likelihood that is quadratic in the
weights, an expectation over all of them needs only a sum of m k terms and one product with an m x m
matrix.

Source: Evans thesis, section 7.3. In theorem 7.1 H has to multiply the squared values.
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
        by_probabilities (..., m, k): derivative by the probabilities, as if they were free (their
            sums are not held at one).
        by_values (..., m, k): derivative by the values of each weight.
    """

    value: Tensor
    by_probabilities: Tensor
    by_values: Tensor


def squared_error(
    statistics: SufficientStatistics, probabilities: Tensor, values: Tensor
) -> SquaredError:
    """E |r - Phi w|^2 over n rows under independent weights.

    With means s and variances v of the weights it is |r|^2 - 2 s.c + s^T A s + diag(A).v, for
    A = Phi^T Phi and c = Phi^T r.

    Args:
        statistics: sums over the rows, for m functions.
        probabilities (..., m, k): of each weight's values under q.
        values (k,) or (m, k): possible values of the weights.

    Cost: O(m^2 + m k), independent of n.
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
    return SquaredError(value, (others + own) * values, (others + 2.0 * own) * probabilities)


def cumulants(probabilities: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and third cumulant (..., m) of discrete variables.

    Args:
        probabilities (..., m, k): of the values; they sum to one.
        values (k,) or (m, k).
    """
    mean = (probabilities * values).sum(-1)
    off = values - mean.unsqueeze(-1)
    square = probabilities * off * off
    return mean, square.sum(-1), (square * off).sum(-1)


def negative_divergence(log_q: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """-KL(q || prior) (...) of discrete variables, and its derivative by the probabilities of q.

    Args:
        log_q (..., k), log_prior (k,): normalised and finite.
    """
    slope = log_prior - log_q
    return (log_q.exp() * slope).sum(-1), slope - 1.0


def by_logits(q: Tensor, slope: Tensor) -> Tensor:
    """Derivative by logits (..., k), from the derivative ``slope`` by q = softmax(logits)."""
    return q * (slope - (q * slope).sum(-1, keepdim=True))


class NoiseTerms(NamedTuple):
    """Terms of the bound that depend on the noise variance s.

    Attributes:
        precision (): E 1 / s.
        constant (): -n E log(2 pi s) / 2.
        prior (): -KL(q(s) || prior).
        log_q (k,): log probabilities of the values of s under q; empty if s is known.
    """

    precision: Tensor
    constant: Tensor
    prior: Tensor
    log_q: Tensor


def known_noise_terms(variance: Tensor, num_data: Tensor) -> NoiseTerms:
    """Noise terms for a known noise variance () and n ()."""
    constant = -0.5 * num_data * (variance.log() + LOG_TWO_PI)
    return NoiseTerms(1.0 / variance, constant, variance.new_zeros(()), variance.new_zeros(0))


def discrete_noise_terms(
    log_q: Tensor, values: Tensor, log_prior: Tensor, num_data: Tensor
) -> NoiseTerms:
    """Noise terms for a variance with ``values`` (k,), their log probabilities (k,) and n ()."""
    q = log_q.exp()
    constant = -0.5 * num_data * (q @ values.log() + LOG_TWO_PI)
    return NoiseTerms(
        q @ values.reciprocal(), constant, negative_divergence(log_q, log_prior)[0], log_q
    )


def best_noise_logits(error: Tensor, num_data: Tensor, values: Tensor, log_prior: Tensor) -> Tensor:
    """Logits (k,) of the optimal q(noise variance) for ``error`` () = E |r - Phi w|^2 and n ()."""
    return log_prior - 0.5 * (num_data * values.log() + error / values)


class Bound(NamedTuple):
    """The evidence lower bound of regression on discrete weights; nats.

    Attributes:
        value (): fit + constant + weights + noise.
        fit (): -E |r - Phi w|^2 E 1/s / 2.
        constant (): -n E log(2 pi s) / 2.
        weights (), noise (): -KL(q || prior) of the weights and of the noise variance.
        by_logits (m, k), by_noise_logits (k_s,): derivatives of the value.
        by_values (m, k): derivative of the fit by the values of each weight.
    """

    value: Tensor
    fit: Tensor
    constant: Tensor
    weights: Tensor
    noise: Tensor
    by_logits: Tensor
    by_noise_logits: Tensor
    by_values: Tensor

    @property
    def parts(self) -> dict[str, Tensor]:
        """The four terms of the value by name."""
        return {name: getattr(self, name) for name in ("fit", "constant", "weights", "noise")}


def bound(
    statistics: SufficientStatistics,
    log_q: Tensor,
    values: Tensor,
    log_prior: Tensor,
    noise: NoiseTerms,
    noise_grid: tuple[Tensor, Tensor] | None = None,
) -> Bound:
    """The lower bound E log p(y | w, s) - KL on log p(y), exact, with its gradient in closed form.

    Args:
        statistics: sums over n rows.
        log_q (m, k), values (k,), log_prior (k,): of the weights.
        noise: terms of the noise variance.
        noise_grid: possible noise variances (k_s,) and their log prior (k_s,); None if it is known.

    Cost: O(m^2 + m k + k_s), independent of n.
    """
    q = log_q.exp()
    error = squared_error(statistics, q, values)
    divergence, slope = negative_divergence(log_q, log_prior)
    fit = -0.5 * noise.precision * error.value
    total = divergence.sum()
    slope = slope - 0.5 * noise.precision * error.by_probabilities
    by_noise_logits = noise.log_q  # empty for a known noise variance
    if noise_grid is not None:
        variances, prior = noise_grid
        log_likelihood = -0.5 * (statistics.num_data * variances.log() + error.value / variances)
        noise_slope = log_likelihood + negative_divergence(noise.log_q, prior)[1]
        by_noise_logits = by_logits(noise.log_q.exp(), noise_slope)
    return Bound(
        fit + noise.constant + total + noise.prior,
        fit,
        noise.constant,
        total,
        noise.prior,
        by_logits(q, slope),
        by_noise_logits,
        -0.5 * noise.precision * error.by_values,
    )


def logits_after_sweep(
    gram: Tensor,
    projected: Tensor,
    logits: Tensor,
    values: Tensor,
    log_prior: Tensor,
    precision: Tensor,
) -> Tensor:
    """Logits (m, k) after a sweep of coordinate ascent: each weight's q is set to its optimum.

    Args:
        gram (m, m), projected (m,): Phi^T Phi and Phi^T r.
        logits (m, k): starting point.
        values (k,), log_prior (k,): of every weight.
        precision (): expected noise precision.

    Cost: m (m + k) in m sequential updates. They run on the CPU whatever the device, since
    launching m small kernels in sequence takes longer than copying ``gram``.
    """
    device = logits.device
    rows, target, levels, prior = (
        part.double().cpu().numpy() for part in (gram, projected, values, log_prior)
    )
    linear = float(precision) * levels
    quadratic = prior - 0.5 * np.outer(rows.diagonal(), linear * levels)
    means = logits.double().cpu().softmax(-1).numpy() @ levels
    fitted = rows @ means
    updated = np.empty_like(quadratic)
    for number, row in enumerate(rows):
        residual = target[number] - fitted[number] + row[number] * means[number]
        best = quadratic[number] + residual * linear
        updated[number] = best
        odds = np.exp(best - best.max())
        mean = (odds @ levels) / odds.sum()
        fitted += (mean - means[number]) * row
        means[number] = mean
    return torch.from_numpy(updated).to(device)


def draw_codes(
    shares: Tensor, probabilities: Tensor, num: int, generator: torch.Generator
) -> Tensor:
    """Draw ``num`` weight vectors from a mixture, as indices into the values: (num, m), int64.

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
