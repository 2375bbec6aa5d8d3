"""Entropy of a mixture of independent discrete variables: a lower bound, and sampled gradients.

The entropy of q(w) = sum_i alpha_i prod_j q_ij(w_j) has no closed form: it is a sum over k^m states
of a logarithm of a sum. All functions take logarithms and are differentiable.

Source: Evans thesis, section 7.4 (theorem 7.3, equation 7.27).
"""

from __future__ import annotations

import torch
from torch import Tensor


def entropy_bound(log_shares: Tensor, log_q: Tensor, log_tangent: Tensor) -> Tensor:
    """A lower bound () on the entropy of a mixture, in nats; exact where q = a.

    The tangent of the logarithm at any positive a = prod_j a_j gives log q <= log a + q / a - 1, so
    the entropy is at least 1 - E log a - E q / a, and both expectations factorise over weights.

    Args:
        log_shares (r,): log alpha.
        log_q (r, m, k): log probabilities of every weight in every component.
        log_tangent (m, k): log a, which need not be normalised.

    Cost: O(r^2 m k).
    """
    shares = log_shares.exp()
    linear = (shares.view(-1, 1, 1) * log_q.exp() * log_tangent).sum()
    quadratic = shares.new_zeros(())
    for place, row in enumerate(log_q):
        # pairs i >= place; those of different components count twice
        overlap = (log_q[place:] + row - log_tangent).logsumexp(-1).sum(-1)
        count = torch.full_like(overlap, 2.0)
        count[0] = 1.0
        quadratic = (
            quadratic + (count * (log_shares[place] + log_shares[place:] + overlap).exp()).sum()
        )
    return 1.0 - linear - quadratic


def log_density(log_shares: Tensor, log_q: Tensor, codes: Tensor) -> Tensor:
    """log q (t,) at draws of the weights.

    Args:
        log_shares (r,), log_q (r, m, k): of the mixture.
        codes (t, m): the draws, as indices into the values, int64.

    Cost: O(t r m).
    """
    functions = torch.arange(log_q.shape[1], device=codes.device)
    chosen = log_q[:, functions, codes].sum(-1)  # (r, t)
    return (log_shares.unsqueeze(1) + chosen).logsumexp(0)


def entropy_surrogate(log_probabilities: Tensor, baseline: Tensor | float) -> Tensor:
    """A scalar whose gradient is an unbiased estimate of the entropy's gradient.

    It is -mean((log q + c)^2) / 2 at fixed draws; its value has no meaning. Its mean gradient is
    -E[(log q + c) grad log q], where any constant c drops out because E grad log q = 0.

    Args:
        log_probabilities (t,): log q at draws from q, differentiable.
        baseline: c, independent of the draw; the variance is smallest near -E log q.
    """
    return -0.5 * (log_probabilities + baseline).square().mean()
