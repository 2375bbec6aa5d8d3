"""The evidence lower bound of a network of discrete weights, as an objective."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.direct.mean_field import total


@runtime_checkable
class NetworkWeights(Protocol):
    """What ``DirectNetworkELBO`` requires of a model."""

    likelihood: Gaussian

    def bound_terms(self) -> dict[str, Tensor]:
        """Terms of the bound, in nats."""

    def facts(self) -> Facts:
        """Plain values for the run's record."""


class DirectNetworkELBO(Objective[NetworkWeights]):
    """Evidence lower bound of ``DirectNetwork``, from its sums over the data: x, y are not read.

    Exactness: a lower bound on the log marginal likelihood of the discrete model, including the
    constant -n log(2 pi) / 2; nothing is sampled.
    Cost: O(h^2 b) for h terms and b weights, independent of n.
    Source: Evans thesis, appendix E.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "lower_bound"
    models = (NetworkWeights,)
    made_for = "DirectNetwork"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self,
        model: NetworkWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound in nats; parts: fit, constant, and -KL of weights and noise."""
        terms = model.bound_terms()
        return Evidence(total(terms), self.kind, terms, None, model.facts())
