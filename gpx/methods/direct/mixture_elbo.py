"""Evidence lower bounds of mixtures over discrete weights, with the entropy bounded or sampled."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.direct.entropy import entropy_bound, entropy_surrogate, log_density
from gpx.methods.direct.mean_field import draw_codes


@runtime_checkable
class MixtureWeights(Protocol):
    """What the bounds of this file require of a model."""

    likelihood: Gaussian
    tangent: Tensor

    def log_shares(self) -> Tensor:
        """Log shares of the components (r,)."""

    def log_q(self) -> Tensor:
        """Log probabilities of every weight in every component (r, m, k)."""

    def exact_terms(self) -> dict[str, Tensor]:
        """All terms of the bound but the entropy, in nats."""

    def facts(self) -> Facts:
        """Plain values for the run's record."""


class DirectMixtureELBO(Objective[MixtureWeights]):
    """Evidence bound of ``DirectMixture`` with a lower bound on the entropy; x, y are not read.

    Exactness: a lower bound on the evidence lower bound of the mixture, hence on the log marginal
    likelihood of the discrete model; deterministic.
    Cost: O(r m^2 + r^2 m k), independent of n.
    Source: Evans thesis, theorem 7.3.
    """

    batching = "full"
    kind = "lower_bound"
    models = (MixtureWeights,)
    made_for = "DirectMixture"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self,
        model: MixtureWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound in nats; parts: fit, constant, prior, noise and entropy."""
        self.check(model)
        terms = model.exact_terms()
        terms["entropy"] = entropy_bound(model.log_shares(), model.log_q(), model.tangent)
        value = torch.stack(list(terms.values())).sum()
        return Evidence(value, self.kind, terms, None, model.facts())


class DirectSampledELBO(Objective[MixtureWeights]):
    """Evidence lower bound of ``DirectMixture`` with a sampled entropy; x and y are not read.

    Terms that depend on the data stay exact. The baseline of a draw's score-function gradient is
    minus the mean of log q over the other draws, which keeps the gradient unbiased.

    Args:
        num_data: n; the loss is divided by it.
        draws: number t of draws of the weights, at least 2.

    Raises:
        ConfigError: fewer draws.

    Exactness: an unbiased estimate, in value and gradient, of a lower bound on the log marginal
    likelihood of the discrete model.
    Cost: O(r (m^2 + m k) + t r m), independent of n.
    Source: Evans thesis, equation 7.27.
    """

    batching = "minibatch"
    kind = "unbiased"
    models = (MixtureWeights,)
    made_for = "DirectMixture"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(self, num_data: int, draws: int = 100) -> None:
        super().__init__()
        if draws < 2:
            raise ConfigError(f"draws={draws}: one is compared with the others, use at least 2")
        self.total, self.draws = num_data, draws

    def evidence(
        self,
        model: MixtureWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The estimate in nats; parts: fit, constant, prior, noise and entropy."""
        self.check(model)
        if generator is None:
            raise ConfigError("DirectSampledELBO draws weights: pass a generator")
        terms = model.exact_terms()
        log_shares, log_q = model.log_shares(), model.log_q()
        codes = draw_codes(log_shares.detach().exp(), log_q.detach().exp(), self.draws, generator)
        logs = log_density(log_shares, log_q, codes)
        fixed = logs.detach()
        baseline = (fixed - fixed.sum()) / (self.draws - 1)
        surrogate = entropy_surrogate(logs, baseline)
        terms["entropy"] = surrogate - surrogate.detach() - fixed.mean()
        value = torch.stack(list(terms.values())).sum()
        return Evidence(value, self.kind, terms, None, model.facts())

    @torch.no_grad()
    def full_evidence(
        self,
        model: MixtureWeights,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """As ``evidence``, which covers all rows already; batch_size is not read."""
        return self.evidence(model, x, y, generator=generator)
