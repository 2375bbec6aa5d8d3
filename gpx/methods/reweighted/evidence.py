"""Evidence of a re-weighted basis plus hyper-priors, from sufficient statistics."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import with_gradient
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.reweighted.hyper_priors import HyperPriors
from gpx.methods.reweighted.weights import ReweightedForm


class JointDensity(NamedTuple):
    """log p(y | u) + log p(u) at u = (log g, log noise), and its gradient (k + 1,).

    Attributes:
        likelihood (): log p(y | u), nats.
        prior (): log p(u), nats; zero for a flat prior.
        gradient (k + 1,): of their sum.
        fit (), complexity (), constant (): the parts of ``likelihood``.
    """

    likelihood: Tensor
    prior: Tensor
    gradient: Tensor
    fit: Tensor
    complexity: Tensor
    constant: Tensor


@torch.no_grad()
def joint_density(
    form: ReweightedForm, priors: HyperPriors | None, position: Tensor
) -> JointDensity:
    """The density that type-I inference samples and type-II inference maximises.

    A density of logarithms, Jacobian included: log-normal priors are Gaussian in u.

    Args:
        form: of the sums over the data.
        priors: of g and noise; None: flat in u.
        position (k + 1,): u, float64.

    Raises:
        NotPositiveDefinite: u is so extreme that the covariance is not finite.

    Cost: that of ``form``, independent of n.
    Source: Evans thesis, section 5.4; gradient: appendix C.1, computed more cheaply.
    """
    log_noise = position[-1]
    weights = form.weights(position[:-1], log_noise)
    likelihood = weights.log_marginal_likelihood()
    gradient = torch.cat([weights.weight_gradient(), weights.noise_gradient()[None]])
    value = torch.zeros_like(likelihood)
    if priors is not None:
        value, slope = priors.density(position)
        gradient += slope
    return JointDensity(likelihood, value, gradient, **weights.parts(log_noise))


@runtime_checkable
class Reweighting(Protocol):
    """What the evidence needs of a model on a re-weighted basis."""

    likelihood: Likelihood

    @property
    def form(self) -> ReweightedForm:
        """The form of the sums over the data."""

    @property
    def hyper_priors(self) -> HyperPriors | None:
        """Hyper-priors of variances and noise."""

    @property
    def is_probit(self) -> bool:
        """Whether the targets are classes."""

    @property
    def noise_variance(self) -> Tensor:
        """Noise variance ()."""

    def log_variances(self) -> Tensor:
        """Log prior variances of the weights (k,)."""

    def facts(self) -> Facts:
        """Facts for metrics.json."""


class ReweightedEvidence(Objective[Reweighting]):
    """Log evidence of ``Reweighted`` plus the log density of its hyper-priors.

    Computed from the model's sums over the data; x and y are not read.

    Exactness: without hyper-priors the exact log marginal likelihood of the re-weighted kernel,
    which is an estimate of that of the base kernel.
    Cost: ``joint_density``.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "estimate"
    models = (Reweighting,)
    made_for = "Reweighted"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian, Bernoulli)

    def evidence(
        self, model: Reweighting, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats, in float64; parts: fit, complexity, constant and prior."""
        if model.is_probit:
            raise ConfigError(
                "the evidence of classes has no closed form: sample it by "
                "inference=type1, or use model=SVGP()"
            )
        noise, log_variances = model.noise_variance, model.log_variances()
        position = torch.cat([log_variances.detach(), noise.detach().double().log()[None]])
        found = joint_density(model.form, model.hyper_priors, position)
        value = found.likelihood + found.prior
        slope = found.gradient[-1] / noise.detach().double()
        value = with_gradient(
            value, [log_variances, noise], [found.gradient[:-1], slope.to(noise.dtype)]
        )
        parts = {name: getattr(found, name) for name in ("fit", "complexity", "constant")}
        parts["prior"] = found.prior
        facts = model.facts() | {"log_marginal_likelihood": float(found.likelihood)}
        return Evidence(value, self.kind, parts, None, facts)
