"""The evidence lower bound of regression on discrete weights, as an objective."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError, DidNotConverge
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.direct.mean_field import total


@runtime_checkable
class DiscreteWeights(Protocol):
    """What ``DirectELBO`` requires of a model."""

    likelihood: Gaussian
    totals: Tensor

    def mean_field_terms(self, logits: Tensor | None = None) -> dict[str, Tensor]:
        """Terms of the bound in nats, at the present logits or others; differentiable."""

    def bound_value(self, logits: Tensor | None = None) -> float:
        """Their sum."""

    def logits_after_sweep(self) -> Tensor:
        """Logits after one sweep of coordinate ascent."""

    def values(self) -> Tensor:
        """Values (k,) of the weights, differentiable if they are learned."""

    def facts(self) -> Facts:
        """Plain values for the run's record."""


class DirectELBO(Objective[DiscreteWeights]):
    """Evidence lower bound of ``Direct``, from the model's sums over the data: x, y are not read.

    Nothing is sampled: value and gradient are exact, as a line search needs them.

    Exactness: a lower bound on the log marginal likelihood of the discrete model, including the
    constant -n log(2 pi) / 2. The discrete prior approximates a Gaussian process, so this is an
    estimate of the log marginal likelihood of that process, not a bound on it.
    Cost: O(m^2 + m k) for m weights of k values, independent of n.
    Source: Evans thesis, theorem 7.1.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "lower_bound"
    models = (DiscreteWeights,)
    made_for = "Direct"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def check(self, model: DiscreteWeights) -> None:
        """As in ``Objective``; points to DirectLogistic for two classes."""
        if isinstance(getattr(model, "likelihood", None), Bernoulli):
            raise ConfigError(
                "Direct is regression under Gaussian noise, and the likelihood is Bernoulli; for "
                "two classes on discrete weights use model=DirectLogistic()"
            )
        super().check(model)

    def evidence(
        self,
        model: DiscreteWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound in nats; parts: fit, constant, and -KL of weights and noise."""
        terms = model.mean_field_terms()
        value = total(terms)
        # a line search catches this and steps back
        if model.values().requires_grad and not bool(value.isfinite()):
            raise DidNotConverge(
                "learned values of the weights have left the range of float64; use "
                "learn_values=False or more values"
            )
        return Evidence(value, self.kind, terms, None, model.facts())

    @torch.no_grad()
    def full_evidence(
        self,
        model: DiscreteWeights,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """``evidence``, with ``sweep_gain`` and ``misfit`` added to its facts.

        ``sweep_gain`` is the gain in nats of one more sweep of coordinate ascent. Where q puts all
        probability on one value, the gradient by the logits vanishes even if another value would be
        better; a sweep shows whether changing a single weight could still raise the bound.
        ``misfit`` is the expected squared error per row times the expected noise precision. If it
        is far above one, the values of the weights are too far apart for so small a noise variance,
        and the posterior variance is too small, or too large where weights are spread over values.
        """
        found = self.evidence(model, x, y, generator=generator)
        gain = model.bound_value(model.logits_after_sweep()) - float(found.value)
        misfit = -2.0 * float(found.parts["fit"] / model.totals[1])
        return replace(found, facts=found.facts | {"sweep_gain": gain, "misfit": misfit})
