"""Log marginal likelihood of a fixed basis from sufficient statistics, for priors of any shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.linalg import cholesky
from gpx.methods.reweighted.weights import ReweightedWeights

LOG_TWO_PI = math.log(2.0 * math.pi)


def log_marginal_likelihood(weights: ReweightedWeights) -> Tensor:
    """log N(r; 0, C) in nats, 0-d. Exact; no cost beside that of the weights' posterior."""
    constant = weights.num_data * LOG_TWO_PI
    return -0.5 * (weights.fit + weights.log_determinant + constant)


def precision_evidence(
    statistics: SufficientStatistics, precision: Tensor, noise: Tensor
) -> Tensor:
    """log N(r; 0, Phi S^{-1} Phi^T + s I) for any positive definite prior precision S.

    With P = s S + Phi^T Phi it is -1/2 of

        (|r|^2 - (Phi^T r)^T P^{-1} Phi^T r) / s + log det P - log det S + (n - m) log s
        + n log(2 pi).

    Args:
        statistics: of n rows; m > n is as good.
        precision (m, m): S.
        noise (): s.

    Returns:
        (): in nats, differentiable in S and s.

    Raises:
        NotPositiveDefinite: S is not; ``covariance_evidence`` takes singular covariances.

    Cost: m^3 / 3 multiply-adds each way, whatever n.
    Source: Evans thesis, equations 5.3 to 5.5.
    """
    m = len(statistics.projected)
    prior, _ = cholesky(precision, name=f"prior precision of {m} weights", ladder=(0.0,))
    inner = noise * precision + statistics.gram
    factor, _ = cholesky(inner, name="s S + Phi^T Phi", ladder=(0.0,))
    half = torch.linalg.solve_triangular(factor, statistics.projected.unsqueeze(1), upper=False)
    fit = (statistics.squared - half.square().sum()) / noise
    logs = 2.0 * (factor.diagonal().log().sum() - prior.diagonal().log().sum())
    unseen = (statistics.num_data - m) * noise.log()
    return -0.5 * (fit + logs + unseen + statistics.num_data * LOG_TWO_PI)


def covariance_evidence(statistics: SufficientStatistics, root: Tensor, noise: Tensor) -> Tensor:
    """log N(r; 0, Phi L L^T Phi^T + s I) for a prior covariance G = L L^T, singular or not.

    With M = s I + L^T Phi^T Phi L and b = L^T Phi^T r it is -1/2 of

        (|r|^2 - b^T M^{-1} b) / s + log det M + (n - k) log s + n log(2 pi);

    G^{-1} never appears.

    Args:
        statistics: of n rows.
        root (m, k): L.
        noise (): s.

    Returns:
        (): in nats, differentiable in L and s.

    Cost: m^2 k + m k^2 + k^3 / 3 multiply-adds each way, whatever n.
    Source: derived from Evans thesis, equations 5.3 to 5.5.
    """
    k = root.shape[1]
    inner = root.mT @ statistics.gram @ root + noise * torch.eye(
        k, dtype=root.dtype, device=root.device
    )
    factor, _ = cholesky(inner, name="s I + L^T Phi^T Phi L", ladder=(0.0,))
    projected = (root.mT @ statistics.projected).unsqueeze(1)
    half = torch.linalg.solve_triangular(factor, projected, upper=False)
    fit = (statistics.squared - half.square().sum()) / noise
    logs = 2.0 * factor.diagonal().log().sum() + (statistics.num_data - k) * noise.log()
    return -0.5 * (fit + logs + statistics.num_data * LOG_TWO_PI)


def evidence_over_noise(weights: ReweightedWeights, log_noise: Tensor) -> Tensor:
    """Evidence at many noise variances where the prior covariance scales with the noise.

    With G = s G' and G' fixed, C = s (Phi G' Phi^T + I): one posterior serves every s.

    Args:
        weights: at g = g' and noise variance one.
        log_noise (...): log s.

    Returns:
        (...): log N(r; 0, s (Phi G' Phi^T + I)) in nats.

    Cost: O(1) a noise variance.
    Source: Evans thesis, section 5.2.4, which needs this parameterisation.
    """
    constant = weights.log_determinant + weights.num_data * (LOG_TWO_PI + log_noise)
    return -0.5 * (weights.fit / log_noise.exp() + constant)
