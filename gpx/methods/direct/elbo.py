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
    """What the bound asks of a model on discrete weights."""

    likelihood: Gaussian
    logits: Tensor
    noise_logits: Tensor
    totals: Tensor

    def bound(self, logits: Tensor | None = None) -> Bound:
        """The bound and its gradient."""

    def swept(self) -> Tensor:
        """Logits after one sweep of coordinate ascent."""

    def values(self) -> Tensor:
        """Of the weights (k,), differentiable where they are learned."""

    def log_prior(self) -> Tensor:
        """At the values (k,), differentiable where it moves with them."""

    def facts(self) -> Facts:
        """Plain values for the record."""


class DirectELBO(Objective[DiscreteWeights]):
    """Evidence lower bound of ``Direct``, from its sums over the data: x and y are not read.

    Nothing is sampled: value and gradient are exact, so that a line search may trust them.

    Exactness: a lower bound on the log marginal likelihood of the discrete model, its constant
    -n log(2 pi) / 2 included. The prior of that model is a relaxation of the Gaussian process, of
    whose log marginal likelihood this is an estimate.
    Cost: O(m^2 + m k) for m weights of k values, whatever n.
    Source: Evans thesis, theorem 7.1.
    """

    batching = "full"
    kind = "lower_bound"
    models = (DiscreteWeights,)
    made_for = "Direct"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def check(self, model: DiscreteWeights) -> None:
        """As in ``Objective``; two classes have a model of their own."""
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
        """The bound in nats; parts: fit, constant and the divergences of weights and noise."""
        self.check(model)
        found = model.bound()
        inputs, gradients = [model.logits], [found.by_logits]
        if len(model.noise_logits):
            inputs.append(model.noise_logits)
            gradients.append(found.by_noise_logits)
        values, prior = model.values(), model.log_prior()
        if values.requires_grad:
            if not bool(found.value.isfinite()):  # a trial of a line search, which then steps back
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
        parts = {name: getattr(found, name) for name in ("fit", "constant", "weights", "noise")}
        return Evidence(value, self.kind, parts, None, model.facts())

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
        """``evidence``, and among its facts ``sweep_gain`` and ``misfit``.

        ``sweep_gain`` is what a sweep of ascent would add, in nats. Where q is certain of a
        value the gradient by its logits vanishes, whether or not the value is the best one; a sweep
        shows whether a weight alone could still raise the bound. ``misfit`` is the expected squared
        error of a row times the expected precision of the noise: far above one, the values of the
        weights are too far apart for a noise this small, and the posterior too sure of itself.
        """
        found = self.evidence(model, x, y, generator=generator)
        gain = float(model.bound(model.swept()).value - found.value)
        misfit = -2.0 * float(found.parts["fit"] / model.totals[1])
        return replace(found, facts=found.facts | {"sweep_gain": gain, "misfit": misfit})

    def num_data(self, x: Tensor) -> int:
        """Rows that x has; what the statistics hold may be more."""
        return max(1, x.shape[0])
