"""Evidence of a fixed interpolation under any kernel on its grid, from statistics alone.

No model runs on these functions yet: they are the core of structured kernel interpolation as a
basis of ``Reweighted``, and for users who learn the kernel of a stream of data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.bases.sufficient_statistics import LOG_TWO_PI, SufficientStatistics
from gpx.linalg import cholesky
from gpx.methods.base.model import Marginals
from gpx.methods.reweighted.weights import CompressedStatistics
from gpx.operators.interpolation import Interpolation


@torch.no_grad()
def interpolation_statistics(weights: Interpolation, residual: Tensor) -> SufficientStatistics:
    """Statistics of a sparse interpolation matrix W in place of Phi.

    A data point touches q^2 entries of the sums, whatever n and m: added to older statistics it is
    the online update of structured kernel interpolation.

    Args:
        weights: W (n, m) with q entries a row.
        residual (n,): y - m(x).

    Cost: O(n q^2) time, O(m^2 + n q^2) memory.
    Source: Evans thesis, section 5.3.3; Stanton et al. 2021 (online).
    """
    m = weights.num_columns
    values, indices, r = weights.values.double(), weights.indices, residual.double()
    gram = torch.zeros(m * m, dtype=torch.float64, device=r.device)
    places = indices.unsqueeze(2) * m + indices.unsqueeze(1)
    gram.index_add_(0, places.flatten(), (values.unsqueeze(2) * values.unsqueeze(1)).flatten())
    projected = gram.new_zeros(m)
    projected.index_add_(0, indices.flatten(), (values * r.unsqueeze(1)).flatten())
    return SufficientStatistics(gram.view(m, m), projected, torch.dot(r, r), len(r))


class InterpolatedProcess(NamedTuple):
    """Evidence, and the posterior of the values u ~ N(0, K) on the grid.

    Attributes:
        evidence (): log N(r; 0, W K W^T + s I), nats.
        mean (m,): of u given the data.
        carried (m, rank): K L with L L^T = W^T W.
        factor (rank, rank): lower Cholesky factor of s I + L^T K L.
    """

    evidence: Tensor
    mean: Tensor
    carried: Tensor
    factor: Tensor

    def marginals(self, weights: Tensor, prior: Tensor) -> Marginals:
        """Mean and variance of f = w^T u at interpolation weights (t, m).

        Args:
            weights (t, m): w of every test point.
            prior (t,): w^T K w.
        """
        cross = (weights @ self.carried).mT
        half = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return Marginals(weights @ self.mean, (prior - half.square().sum(0)).clamp_min(0.0))


def interpolated_process(
    compressed: CompressedStatistics, covariance: Tensor | LinearOperator, noise: Tensor
) -> InterpolatedProcess:
    """Gaussian process w(x)^T u with a fixed interpolation w and u ~ N(0, K), for any K.

    The interpolation does not depend on the kernel, so that every kernel, of any family, is an
    evaluation from the same sums; K may be singular and appears in products only. Additive kernels
    on one grid are the sum of their matrices.

    Args:
        compressed: of the statistics of W.
        covariance (m, m): K; an operator keeps its structure (Kronecker, Toeplitz).
        noise (): s.

    Returns:
        evidence and posterior, differentiable in K and s.

    Exactness: exact for the interpolated kernel.
    Cost: rank products with K, rank^2 m + rank^3 / 3 multiply-adds.
    Source: Evans thesis, section 5.3.3; the low-rank form is ours.
    """
    root = compressed.vectors * compressed.values.sqrt()
    carried = covariance @ root
    inner = root.mT @ carried
    inner = 0.5 * (inner + inner.mT)
    matrix = inner + noise * torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    factor, _ = cholesky(matrix, name="s I + L^T K L of an interpolation", ladder=(0.0,))
    alpha = torch.cholesky_solve(compressed.targets.unsqueeze(1), factor).squeeze(1)
    n, rank = compressed.num_data, compressed.rank
    fit = compressed.rest / noise + torch.dot(compressed.targets, alpha)
    logs = 2.0 * factor.diagonal().log().sum() + (n - rank) * noise.log()
    evidence = -0.5 * (fit + logs + n * LOG_TWO_PI)
    return InterpolatedProcess(evidence, carried @ alpha, carried, factor)
