"""Relevance vectors from sufficient statistics: the rules of the RVM at a cost free of n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.linalg import cholesky
from gpx.methods.reweighted.hyper_priors import InverseGamma
from gpx.methods.reweighted.weights import CovarianceForm, ReweightedForm, ReweightedWeights

COLLINEAR = 1e-10
"""Share of a function that the others leave over below which that share is rounding."""

LEFT_OUT = math.log(1e-300)
"""Logarithm that stands for a prior variance of zero."""

PRUNED = 1e-12
"""Prior variances below this times the largest say nothing."""


def em_update(
    form: ReweightedForm,
    log_variances: Tensor,
    log_noise: Tensor,
    prior: InverseGamma | None = None,
) -> Tensor:
    """One step of expectation maximisation: the evidence, or the joint density, never falls.

    g_i <- E[w_i^2 | y], with Student-t weights of nu degrees of freedom and squared scale c
    (E[w_i^2 | y] + nu c) / (1 + nu), which is no longer sparse.

    Args:
        form: from the statistics.
        log_variances (k,): log g; log_noise (): log s.
        prior: of every g; None: flat in log g.

    Returns:
        (k,): the new log g. Without a prior it falls for ever where a function is of no use.

    Cost: one evidence with its gradient.
    Source: Tipping 2001; from statistics: Evans thesis, section 5.3.2.
    """
    weights = form.weights(log_variances, log_noise)
    squared = log_variances + (weights.pull.square() + 1.0 - weights.learned).log()
    if prior is None:
        return squared
    return ((squared.exp() + prior.freedom * prior.mode) / (1.0 + prior.freedom)).log()


def relevant(samples: Tensor) -> Tensor:
    """Numbers (k,), at least one, of the functions whose prior variance counts in any sample.

    Args:
        samples (T, m + 1): (log g, log noise).
    """
    logs = samples[:, :-1]
    best = logs.amax(1, keepdim=True)
    counts = (logs > best + math.log(PRUNED)).any(0) & (logs > LEFT_OUT + 1.0).any(0)
    kept = counts.nonzero().squeeze(1)
    return kept if len(kept) else kept.new_zeros(1)


def active_weights(
    statistics: SufficientStatistics, variances: Tensor, noise: Tensor
) -> ReweightedWeights:
    """Posterior of the weights with g_i > 0 alone; variances g (m,), noise ().

    Cost: k^3 for k of them.
    """
    kept = variances.nonzero().squeeze(1)
    form = CovarianceForm(statistics.of_functions(kept))
    return form.weights(variances[kept].log(), noise.log())


def noise_update(statistics: SufficientStatistics, variances: Tensor, noise: Tensor) -> Tensor:
    """A noise variance () of no smaller evidence, the prior variances g (m,) as they are.

    MacKay's fixed point misfit / (n - sum of learned), which is the faster, where its evidence is
    above that of expectation maximisation, (misfit + s sum of learned) / n, which never falls.

    Cost: 3 k^3 for k functions with g > 0.
    Source: MacKay 1992; Tipping 2001.
    """
    weights = active_weights(statistics, variances, noise)
    part = statistics.of_functions(variances.nonzero().squeeze(1))
    misfit = part.about(weights.mean()).squared.clamp_min(0.0)
    used = weights.learned.sum()
    slow = (misfit + noise * used) / statistics.num_data
    fast = misfit / (statistics.num_data - used).clamp_min(1e-3)
    smallest = 1e-12 * statistics.squared / statistics.num_data
    ends = [value.clamp_min(smallest) for value in (slow, fast)]
    fits = [active_weights(statistics, variances, value) for value in ends]
    lowest = torch.stack([w.fit + w.log_determinant for w in fits])
    return torch.stack(ends)[torch.argmin(lowest)]


class CoordinateFactors(NamedTuple):
    """The evidence as a function of one prior variance at a time, the others as they are.

    Up to a constant it is (q^2 g / (1 + g s) - log(1 + g s)) / 2.

    Attributes:
        sparsity (m,): s, the overlap of function i with the model without it.
        quality (m,): q, what it explains of the error of that model.
        optimum (m,): g at the maximum: (q^2 - s) / s^2, or 0 where q^2 <= s.
        gain (m,): of the evidence there, nats, never negative.
    """

    sparsity: Tensor
    quality: Tensor
    optimum: Tensor
    gain: Tensor


def coordinate_factors(
    statistics: SufficientStatistics, variances: Tensor, noise: Tensor
) -> CoordinateFactors:
    """Factors of all m functions at prior variances g (m,), zero for those left out.

    Functions that are collinear to rounding with the model have nothing to gain.

    Cost: k^2 m + k^3 multiply-adds for k functions with g > 0.
    Source: Tipping and Faul 2003; from statistics: derived from Evans thesis, section 5.3.2.
    """
    active = variances.nonzero().squeeze(1)
    root = variances[active].sqrt()
    cross = root.unsqueeze(1) * statistics.gram[active] / noise
    inner = cross[:, active] * root
    inner.diagonal().add_(1.0)
    factor, _ = cholesky(inner, name=f"system of {len(active)} relevance vectors", ladder=(0.0,))
    half = torch.linalg.solve_triangular(factor, cross, upper=False)
    target = root * statistics.projected[active] / noise
    half_target = torch.linalg.solve_triangular(factor, target.unsqueeze(1), upper=False)
    overlap = statistics.gram.diagonal() / noise
    within = overlap - half.square().sum(0)
    error = statistics.projected / noise - (half.mT @ half_target).squeeze(1)
    within = torch.where(within > COLLINEAR * overlap, within, torch.inf)
    # of those in the model without a difference: 1 - g S is the diagonal of the inverse
    left = torch.cholesky_inverse(factor).diagonal()
    pull = torch.cholesky_solve(target.unsqueeze(1), factor).squeeze(1)
    sparsity, quality = within.clone(), error.clone()
    sparsity[active] = (1.0 - left) / (variances[active] * left)
    quality[active] = pull / (root * left)
    excess = quality.square() - sparsity
    optimum = torch.where(excess > 0.0, excess / sparsity.square(), 0.0)

    def value(g: Tensor) -> Tensor:
        grown = torch.where(g > 0.0, g * sparsity, 0.0)
        return 0.5 * (quality.square() * g / (1.0 + grown) - grown.log1p())

    return CoordinateFactors(
        sparsity, quality, optimum, (value(optimum) - value(variances)).clamp_min(0.0)
    )


@dataclass(frozen=True)
class RelevanceReport:
    """What the selection did.

    Attributes:
        steps: prior variances moved.
        residual: gain of the best move left, nats.
        converged: whether that is below the tolerance.
        gains: of every step, nats.
    """

    steps: int
    residual: float
    converged: bool
    gains: tuple[float, ...]


@torch.no_grad()
def select_relevance_vectors(
    statistics: SufficientStatistics,
    noise: Tensor,
    *,
    tolerance: float = 1e-3,
    max_steps: int = 1000,
) -> tuple[Tensor, RelevanceReport]:
    """Maximise the evidence over all prior variances, one at a time, from none on.

    Every step puts the variance with most to gain to its optimum: a function joins, is weighted
    anew, or leaves. The evidence rises by exactly the gain.

    Args:
        statistics: of features of any kind, usually kernel functions at the data.
        noise (): noise variance, which stays.
        tolerance: nats; the best move left gains less.
        max_steps: moves at most; ending there is in the report.

    Returns:
        g (m,), zero for all but the relevance vectors, and the report.

    Raises:
        ConfigError: options out of range.

    Cost: k^2 m + k^3 a step with k vectors, one host synchronisation.
    Source: Tipping and Faul 2003.
    """
    if tolerance <= 0.0 or max_steps < 1:
        raise ConfigError(
            f"tolerance={tolerance} must be positive and max_steps={max_steps} at least 1"
        )
    variances = torch.zeros_like(statistics.projected)
    gains: list[float] = []
    while True:
        factors = coordinate_factors(statistics, variances, noise)
        best = torch.argmax(factors.gain)
        gain = float(factors.gain[best])
        if gain < tolerance or len(gains) == max_steps:
            report = RelevanceReport(len(gains), gain, gain < tolerance, tuple(gains))
            return variances, report
        variances[best] = factors.optimum[best]
        gains.append(gain)
