"""Exact expectations under independent discrete weights, from sums over the data.

m weights with k values each have k^m joint states. For a log likelihood that is quadratic in the
weights, an expectation over all of them needs only a sum of m k terms and one product with an m x m
matrix.

Source: Evans thesis, section 7.3. In theorem 7.1 H has to multiply the squared values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.constants import LOG_TWO_PI
from gpx.linalg import running_sum


def squared_error(
    statistics: SufficientStatistics, probabilities: Tensor, values: Tensor
) -> Tensor:
    """E |r - Phi w|^2 (...) over n rows under independent weights.

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
    of_mean = _MeanError.apply(mean, statistics.gram, statistics.projected)
    return statistics.squared + of_mean + variance @ statistics.gram.diagonal()


class _MeanError(torch.autograd.Function):
    """s^T A s - 2 s.c (...) as a function of s (..., m), for constant A (m, m), symmetric, and c.

    Value and gradient share one product with A; another is taken only for second derivatives.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, gram: Tensor, projected: Tensor) -> Tensor:
        ctx.save_for_backward(s, gram, projected)
        ctx.half_slope = s @ gram - projected
        return (s * (ctx.half_slope - projected)).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        s, gram, projected = ctx.saved_tensors
        half_slope = ctx.half_slope
        if torch.is_grad_enabled():  # create_graph=True
            half_slope = s @ gram - projected
        return 2.0 * grad.unsqueeze(-1) * half_slope, None, None


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


def negative_divergence(log_q: Tensor, log_prior: Tensor) -> Tensor:
    """-KL(q || prior) (...) of discrete variables.

    Args:
        log_q (..., k), log_prior (k,): normalised and finite.
    """
    return (log_q.exp() * (log_prior - log_q)).sum(-1)


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
        q @ values.reciprocal(), constant, negative_divergence(log_q, log_prior), log_q
    )


def best_noise_logits(error: Tensor, num_data: Tensor, values: Tensor, log_prior: Tensor) -> Tensor:
    """Logits (k,) of the optimal q(noise variance) for ``error`` () = E |r - Phi w|^2 and n ()."""
    return log_prior - 0.5 * (num_data * values.log() + error / values)


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The bound () from its terms by name."""
    return torch.stack(list(terms.values())).sum()


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
