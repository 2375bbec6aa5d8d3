"""Gates of a mixture of experts: probabilities of the experts at an input, by Gaussian clusters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI

MIN_RELATIVE_VARIANCE = 1e-4
"""Smallest variance of a cluster along an input, relative to the variance of all rows."""


class Gates(NamedTuple):
    """Expert k has a share pi_k of the rows, with inputs distributed as N(centre_k, variance_k).

    Its gate g_k(x) is proportional to pi_k N(x; centre_k, diag(variance_k)).

    Attributes:
        log_shares (K,), centres (K, d), variances (K, d): of the clusters.
    """

    log_shares: Tensor
    centres: Tensor
    variances: Tensor

    @classmethod
    def fit(cls, x: Tensor, labels: Tensor, count: int) -> Gates:
        """Maximum likelihood clusters of the rows x (n, d) with labels (n,), none of them empty.

        Variances are constrained to at least ``MIN_RELATIVE_VARIANCE`` times that of all rows.
        """
        sizes = torch.bincount(labels, minlength=count).to(x.dtype).unsqueeze(1)
        zeros = x.new_zeros(count, x.shape[1])
        centres = zeros.index_add(0, labels, x) / sizes
        squares = zeros.index_add(0, labels, (x - centres[labels]).square()) / sizes
        spread = x.var(0, correction=0)
        smallest = MIN_RELATIVE_VARIANCE * torch.where(spread > 0.0, spread, 1.0)
        log_shares = (sizes.squeeze(1) / len(x)).log()
        return cls(log_shares, centres, torch.maximum(squares, smallest))

    def log_joint(self, x: Tensor) -> Tensor:
        """log pi_k N(x; centre_k, variance_k) at x (t, d): (K, t)."""
        precision = self.variances.reciprocal()
        middle = self.centres.mean(0)
        at, ends = x - middle, self.centres - middle
        distance = (
            precision @ at.square().mT
            - 2.0 * (precision * ends) @ at.mT
            + (precision * ends.square()).sum(1, keepdim=True)
        )
        volume = self.variances.log().sum(1) + x.shape[1] * LOG_TWO_PI
        return (self.log_shares - 0.5 * volume).unsqueeze(1) - 0.5 * distance

    def probabilities(self, x: Tensor) -> Tensor:
        """g_k(x) at x (t, d): (K, t); columns sum to one."""
        return self.log_joint(x).softmax(0)
