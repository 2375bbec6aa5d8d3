"""How a committee makes one prediction of those of its experts."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.base.posterior import Marginals

CombinationRule = Literal["poe", "gpoe", "bcm", "rbcm", "grbcm"]


def require_rule(rule: str) -> None:
    """Raise ConfigError for a rule that does not exist."""
    if rule not in get_args(CombinationRule):
        raise ConfigError(f"rule={rule}: choose one of {', '.join(get_args(CombinationRule))}")


class Combination:
    """Sums over experts, of which the prediction of a committee is made.

    With reference mean mu_0 and variance v_0 (the prior's; of grBCM the communication expert's) and
    experts mu_k, v_k, k = 1 ... K,

        1 / v = sum_k beta_k / v_k + c (1 - sum_k beta_k) / v_0,
        mu / v = sum_k beta_k mu_k / v_k + c (1 - sum_k beta_k) mu_0 / v_0,

    with weights beta_k and correction c:

        product of experts (poe)       1                                   0
        generalised product (gpoe)     1 / K                               0
        committee machine (bcm)        1                                   1
        robust (rbcm)                  (log v_0 - log v_k) / 2             1
        generalised robust (grbcm)     the same, 1 for the first expert    1

    Args:
        rule: which.
        reference: mu_0 and v_0 (t,).
        num_experts: K, without the communication expert.

    Source: Hinton 2002 (poe), Cao and Fleet 2014 with the weights of Deisenroth and Ng 2015 (gpoe),
    Tresp 2000 (bcm), Deisenroth and Ng 2015 (rbcm), Liu et al. 2018 (grbcm).
    """

    def __init__(self, rule: CombinationRule, reference: Marginals, num_experts: int) -> None:
        self.rule: CombinationRule = rule
        self.reference = reference
        self.num_experts = num_experts
        zeros = torch.zeros_like(reference.variance)
        self.total, self.precision, self.weighted = zeros, zeros.clone(), zeros.clone()

    def weights(self, experts: Tensor, variance: Tensor) -> Tensor:
        """beta (c, t) of ``experts`` (c,), numbered from 0, with variances (c, t)."""
        if self.rule in ("poe", "bcm"):
            return torch.ones_like(variance)
        if self.rule == "gpoe":
            return torch.full_like(variance, 1.0 / self.num_experts)
        # in whole: v_0 may be below v_k by rounding alone
        beta = 0.5 * (self.reference.variance / variance).log().clamp_(min=0.0)
        if self.rule == "grbcm":
            beta = torch.where((experts == 0).unsqueeze(1), 1.0, beta)
        return beta

    def add(self, experts: Tensor, found: Marginals) -> Tensor:
        """Take in the predictions (c, t) of ``experts`` (c,); their weights beta (c, t)."""
        beta = self.weights(experts, found.variance)
        precision = beta / found.variance
        self.total = self.total + beta.sum(0)
        self.precision = self.precision + precision.sum(0)
        self.weighted = self.weighted + (precision * found.mean).sum(0)
        return beta

    @property
    def rest(self) -> Tensor:
        """Weight (t,) of the reference, c (1 - sum_k beta_k)."""
        if self.rule in ("poe", "gpoe"):
            return torch.zeros_like(self.total)
        return 1.0 - self.total

    def result(self) -> Marginals:
        """Mean and variance (t,)."""
        share = self.rest / self.reference.variance
        variance = (self.precision + share).reciprocal()
        return Marginals(variance * (self.weighted + share * self.reference.mean), variance)
