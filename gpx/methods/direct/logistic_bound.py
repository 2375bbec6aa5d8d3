"""The evidence lower bound of two classes under discrete weights, as an objective."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.tensor_checks import check_at_least


@runtime_checkable
class LogisticWeights(Protocol):
    """What ``DirectLogisticBound`` requires of a model."""

    likelihood: Bernoulli

    def bound_terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Bound on the fit of some rows, and weights, which is -KL(q || prior)."""

    def facts(self) -> Facts:
        """Plain values for the run's record."""


class DirectLogisticBound(Objective[LogisticWeights]):
    """Lower bound of ``DirectLogistic``: -sum_i prod_j E exp(-t_i phi_ij w_j) minus KL(q || prior).

    Args:
        num_data: n; the fit of a batch is scaled up to all n rows.

    Raises:
        ConfigError: no rows.

    Exactness: on all rows, a lower bound on the evidence lower bound and so on the log marginal
    likelihood of the discrete model; on a batch, an unbiased estimate of it in value and gradient.
    The bound is loose where classes overlap: confident wrong predictions are charged exponentially,
    which shrinks f towards zero and the predicted probabilities towards one half.
    Cost: O(b m k) for a batch of b rows.
    Source: Evans thesis, theorem 7.2.
    """

    gradient_of_inputs = False
    batching = "minibatch"
    kind = "unbiased"
    models = (LogisticWeights,)
    made_for = "DirectLogistic"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Bernoulli,)

    def __init__(self, num_data: int) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data)
        self.total = num_data

    def evidence(
        self,
        model: LogisticWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound in nats; parts: fit, and weights, which is -KL(q || prior)."""
        terms = model.bound_terms(x, y)
        terms["fit"] = self.total / len(x) * terms["fit"]
        value = terms["fit"] + terms["weights"]
        return Evidence(value, self.kind, terms, None, model.facts())

    @torch.no_grad()
    def full_evidence(
        self,
        model: LogisticWeights,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound itself, streamed over all rows."""
        fit = torch.zeros((), dtype=torch.float64, device=x.device)
        for rows_x, rows_y in zip(x.split(batch_size), y.split(batch_size), strict=True):
            terms = model.bound_terms(rows_x, rows_y)
            fit += terms["fit"]
        terms["fit"] = fit
        return Evidence(fit + terms["weights"], "lower_bound", terms, None, model.facts())
