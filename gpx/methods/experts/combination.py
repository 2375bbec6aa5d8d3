"""Rules by which a committee combines the predictions of its experts."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.methods.base.posterior import Marginals
from gpx.tensor_checks import check_one_of

CombinationRule = Literal["poe", "gpoe", "bcm", "rbcm", "grbcm"]


def require_rule(rule: str) -> None:
    """Raise ConfigError unless ``rule`` is a ``CombinationRule``."""
    check_one_of(get_args(CombinationRule), rule=rule)


class Combination:
    """Running sums over experts that give the committee's prediction.

    With the reference's mean mu_0 and variance v_0 (those of the prior; for grBCM those of the
    communication expert) and the experts' mu_k and v_k, k = 1 ... K,

        1 / v = sum_k beta_k / v_k + c (1 - sum_k beta_k) / v_0,
        mu / v = sum_k beta_k mu_k / v_k + c (1 - sum_k beta_k) mu_0 / v_0,

    with weights beta_k and correction c:

        product of experts (poe)       1                                   0
        generalised product (gpoe)     1 / K                               0
        committee machine (bcm)        1                                   1
        robust (rbcm)                  (log v_0 - log v_k) / 2             1
        generalised robust (grbcm)     the same, 1 for the first expert    1

    Args:
        rule: one of the above.
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
        self.weight_sum, self.precision, self.weighted_mean = zeros, zeros.clone(), zeros.clone()

    def weights(self, experts: Tensor, variance: Tensor) -> Tensor:
        """Weights beta (c, t) of ``experts`` (c,), numbered from 0, with variances (c, t)."""
        if self.rule in ("poe", "bcm"):
            return torch.ones_like(variance)
        if self.rule == "gpoe":
            return torch.full_like(variance, 1.0 / self.num_experts)
        # v_0 >= v_k up to rounding, so beta is clamped at zero
        beta = 0.5 * (self.reference.variance / variance).log().clamp_(min=0.0)
        if self.rule == "grbcm":
            beta = torch.where((experts == 0).unsqueeze(1), 1.0, beta)
        return beta

    def add(self, experts: Tensor, predictions: Marginals) -> Tensor:
        """Add the predictions (c, t) of ``experts`` (c,); returns their weights beta (c, t)."""
        beta = self.weights(experts, predictions.variance)
        precision = beta / predictions.variance
        self.weight_sum = self.weight_sum + beta.sum(0)
        self.precision = self.precision + precision.sum(0)
        self.weighted_mean = self.weighted_mean + (precision * predictions.mean).sum(0)
        return beta

    @property
    def reference_weight(self) -> Tensor:
        """Weight (t,) of the reference, c (1 - sum_k beta_k)."""
        if self.rule in ("poe", "gpoe"):
            return torch.zeros_like(self.weight_sum)
        return 1.0 - self.weight_sum

    def result(self) -> Marginals:
        """The committee's mean and variance (t,)."""
        share = self.reference_weight / self.reference.variance
        variance = (self.precision + share).reciprocal()
        return Marginals(variance * (self.weighted_mean + share * self.reference.mean), variance)
