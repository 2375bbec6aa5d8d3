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
from gpx.linalg import with_gradient
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.direct.mean_field import Bound


@runtime_checkable
class DiscreteWeights(Protocol):
    """What ``DirectELBO`` requires of a model."""

    likelihood: Gaussian
    logits: Tensor
    noise_logits: Tensor
    totals: Tensor

    def bound(self, logits: Tensor | None = None) -> Bound:
        """The bound and its gradient."""

    def logits_after_sweep(self) -> Tensor:
        """Logits after one sweep of coordinate ascent."""

    def values(self) -> Tensor:
        """Values (k,) of the weights, differentiable if they are learned."""

    def log_prior(self) -> Tensor:
        """Log prior (k,) at the values, differentiable if it depends on learned values."""

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
        self.check(model)
        found = model.bound()
        inputs, gradients = [model.logits], [found.by_logits]
        if len(model.noise_logits):
            inputs.append(model.noise_logits)
            gradients.append(found.by_noise_logits)
        values, prior = model.values(), model.log_prior()
        if values.requires_grad:
            if not bool(found.value.isfinite()):  # a line search catches this and steps back
                raise DidNotConverge(
                    "learned values of the weights have left the range of float64; use "
                    "learn_values=False or more values"
                )
            inputs.append(values)
            gradients.append(found.by_values.sum(0))
        if prior.requires_grad:
            inputs.append(prior)
            gradients.append(model.logits.detach().softmax(-1).sum(0))
        value = with_gradient(
            found.value, inputs, [g.to(i.dtype) for g, i in zip(gradients, inputs, strict=True)]
        )
        return Evidence(value, self.kind, found.parts, None, model.facts())

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
        gain = float(model.bound(model.logits_after_sweep()).value - found.value)
        misfit = -2.0 * float(found.parts["fit"] / model.totals[1])
        return replace(found, facts=found.facts | {"sweep_gain": gain, "misfit": misfit})
