"""The KL term of the weight-space ELBO, estimated from a list of blocks of basis functions."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.methods.weight_space.mean_field import MeanFieldWeights


def weights_kl(
    basis: Basis,
    family: MeanFieldWeights,
    blocks: Tensor,
    factors: Tensor,
    log_scale: Tensor,
    ratio: float,
) -> Tensor:
    """KL between q(w) = N(mu, C C^T) and N(0, S^-1), S diagonal, in nats; 0-d.

    = 1/2 [mu^T S mu + tr(S C C^T) - m - log|S|] - sum_r log c_rr, estimated from the functions in
    ``blocks``; the diagonal of the dense columns and dense blocks of the covariance are always used
    completely.

    Args:
        blocks (L,): list in which every block is equally likely.
        factors (L W, 1 + K): rows of [mu, dense columns of C] there.
        log_scale (L, W): log c_rr there.
        ratio: B / L.

    Exactness: unbiased; exact for a list of all blocks. Cost: O(L W K), and the entries of dense
    blocks.
    Source: QSGP paper propositions 1, 2 and theorem 2, without the data terms.
    """
    precision = basis.block_precision(blocks).to(factors.dtype)
    active = family.is_diagonal_column(blocks)
    square = torch.where(active, (2.0 * log_scale).exp(), torch.zeros_like(log_scale))
    quadratic = ratio * (precision[:, None] * factors.square()).sum()
    trace = ratio * (precision * square.reshape(-1)).sum()
    log_determinants = ratio * (
        0.5 * precision.log().sum() + torch.where(active, log_scale, 0.0).sum()
    )
    log_determinants = log_determinants + family.log_dense_diagonal().sum()
    for columns, root in family.covariance_blocks(factors.dtype):
        trace = trace + root.square().sum(0) @ basis.precision_diagonal(columns).to(root)
        log_determinants = log_determinants + root.diagonal().log().sum()
    return 0.5 * (quadratic + trace - basis.num_basis) - log_determinants
