"""Evidence of a fixed basis under a prior of any shape, given by its spectrum: O(m^2)."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.linalg.householder import reflect, reflectors_of
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.statistics_evidence import LOG_TWO_PI


def spectral_evidence(
    compressed: CompressedStatistics, log_variances: Tensor, reflectors: Tensor, log_noise: Tensor
) -> Tensor:
    """log N(r; 0, F U diag(g) U^T F^T + s I) for the orthonormal functions F = Phi V Lambda^{-1/2}.

    With c = U^T F^T r and |r|^2 = |F^T r|^2 + rest it is -1/2 of

        rest / s + sum_i (c_i^2 / (s + g_i) + log(s + g_i)) + (n - rank) log s + n log(2 pi):

    no factorisation, no difference of large numbers, and with U free the most general prior there
    is on these functions.

    Args:
        compressed: statistics.
        log_variances (rank,): log g.
        reflectors (k, rank): of U, see ``reflect``; no rows are U = I.
        log_noise (): log s.

    Returns:
        (): in nats, differentiable in everything but the statistics.

    Exactness: exact.
    Cost: O(rank^2) time and memory with its gradient, whatever n and m.
    Source: Evans thesis, section 5.2.2, in a form free of cancellation.
    """
    turned = reflect(reflectors, compressed.targets)
    noise = log_noise.exp()
    wide = noise + log_variances.exp()
    n, rank = compressed.num_data, compressed.rank
    fit = compressed.rest / noise + (turned.square() / wide).sum()
    logs = wide.log().sum() + (n - rank) * log_noise
    return -0.5 * (fit + logs + n * LOG_TWO_PI)


@torch.no_grad()
def spectral_prior(compressed: CompressedStatistics, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``spectral_evidence`` starts: a prior covariance of the m weights of the basis.

    Args:
        covariance (m, m), or its diagonal (m,).

    Returns:
        log g (rank,), eigenvalues below 1e-14 times the largest raised to that, and reflectors
        (rank, rank) of the same prior over functions.

    Cost: O(m^2 rank + rank^3), once.
    """
    root = compressed.values.sqrt()
    carried = (
        compressed.vectors.mT * covariance
        if covariance.ndim == 1
        else (compressed.vectors.mT @ covariance)
    )
    inner = root.unsqueeze(1) * (carried @ compressed.vectors) * root
    variances, rotation = torch.linalg.eigh(inner)
    floor = 1e-14 * variances[-1]
    return variances.clamp_min(floor).log(), reflectors_of(rotation)
