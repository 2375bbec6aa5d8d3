"""Terms of the weight-space ELBO, estimated from lists of rows and basis functions.

ELBO = -1/2 [L_mu + L_Sigma + L_const] for y = Phi w + noise, w ~ N(0, S^-1), q(w) = N(mu, C C^T).
Each estimate is unbiased for independent lists in which every entry is equally likely, and exact
for full lists. ``mean_term`` allows any S; ``weights_kl`` is the KL term for diagonal S.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.methods.weight_space.mean_field import MeanFieldWeights


def prior_quadratic(left: Tensor, right: Tensor, precision: Tensor, ratio: float) -> Tensor:
    """Estimate of sum_k v_k^T S v_k; 0-d.

    Args:
        left, right (l, k): rows of v at lists j and i.
        precision: S_ji (l, l); or, for diagonal S, its diagonal s_i (l,) at list i. The second form
            does not depend on common entries of the two lists, so it is the one to use for
            diagonal S.
        ratio: m / l.
    """
    if precision.ndim == 1:
        return ratio * (precision[:, None] * right.square()).sum()
    return ratio**2 * (left * (precision @ right)).sum()


def mean_term(
    targets: Tensor,
    phi_left: Tensor,
    phi_right: Tensor,
    left: Tensor,
    right: Tensor,
    precision: Tensor,
    noise: Tensor | float,
    *,
    per_row: float = 1.0,
    ratio: float = 1.0,
) -> Tensor:
    """L_mu = (-2 y^T Phi mu + |Phi mu|^2) / noise + mu^T S mu, estimated; 0-d.

    Args:
        targets (b,): y of the mini-batch.
        phi_left, phi_right (b, l): features at lists j and i.
        left, right (l,): mu there.
        precision: S_ji (l, l), or s_i (l,) for diagonal S.
        noise (): noise variance.
        per_row: n / rows in the mini-batch.
        ratio: m / length of lists i and j.

    Exactness: unbiased when i and j are independent; tying them (i = j) is biased.
    Cost: O(b l + l^2). Source: QSGP paper theorem 1.
    """
    f_left, f_right = phi_left @ left, phi_right @ right
    linear = -2.0 * per_row * ratio * (targets @ f_right)
    quadratic = per_row * ratio**2 * (f_left @ f_right)
    prior = prior_quadratic(left[:, None], right[:, None], precision, ratio)
    return (linear + quadratic) / noise + prior


def weights_kl(
    basis: Basis,
    family: MeanFieldWeights,
    blocks: Tensor,
    factors: Tensor,
    log_scale: Tensor,
    ratio: float,
) -> Tensor:
    """KL between q(w) = N(mu, C C^T) and N(0, S^-1), in nats; 0-d.

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
    quadratic = prior_quadratic(factors, factors, precision, ratio)
    trace = ratio * (precision * square.reshape(-1)).sum()
    log_determinants = ratio * (
        0.5 * precision.log().sum() + torch.where(active, log_scale, 0.0).sum()
    )
    log_determinants = log_determinants + family.log_dense_diagonal().sum()
    for columns, root in family.covariance_blocks(factors.dtype):
        trace = trace + root.square().sum(0) @ basis.precision_diagonal(columns).to(root)
        log_determinants = log_determinants + root.diagonal().log().sum()
    return 0.5 * (quadratic + trace - basis.num_basis) - log_determinants
