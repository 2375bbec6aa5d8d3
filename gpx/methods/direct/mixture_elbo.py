"""Evidence lower bounds of mixtures over discrete weights, with the entropy bounded or sampled.

The entropy of q(w) = sum_i alpha_i prod_j q_ij(w_j) has no closed form: it is a sum over k^m states
of a logarithm of a sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.direct.mean_field import draw_codes, total


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


@runtime_checkable
class SummedRows(Protocol):
    """A model that knows how many rows its sums are of."""

    totals: Tensor
    """Sum of squared targets, and the number of rows (2,)."""


class MixtureBound(Objective[MixtureWeights]):
    """A bound of ``DirectMixture``; it covers all rows in every evaluation."""

    gradient_of_inputs = False

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
        """``evidence``, with ``misfit`` of ``DirectELBO`` added to its facts.

        batch_size is not read.
        """
        return with_misfit(self.evidence(model, x, y, generator=generator), model)


class DirectMixtureELBO(MixtureBound):
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
        terms = model.exact_terms()
        terms["entropy"] = entropy_bound(model.log_shares(), model.log_q(), model.tangent)
        return Evidence(total(terms), self.kind, terms, None, model.facts())


class DirectSampledELBO(MixtureBound):
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
        return Evidence(total(terms), self.kind, terms, None, model.facts())


def with_misfit(found: Evidence, model: MixtureWeights) -> Evidence:
    """``found``, with ``misfit`` of ``DirectELBO`` in its facts if the rows were counted."""
    if not isinstance(model, SummedRows):
        return found
    misfit = -2.0 * float(found.parts["fit"] / model.totals[1])
    return replace(found, facts=found.facts | {"misfit": misfit})


def entropy_bound(log_shares: Tensor, log_q: Tensor, log_tangent: Tensor) -> Tensor:
    """A lower bound () on the entropy of a mixture, in nats; exact where q = a.

    The tangent of the logarithm at any positive a = prod_j a_j gives log q <= log a + q / a - 1, so
    the entropy is at least 1 - E log a - E q / a, and both expectations factorise over weights.

    Args:
        log_shares (r,): log alpha.
        log_q (r, m, k): log probabilities of every weight in every component.
        log_tangent (m, k): log a, which need not be normalised.

    Cost: O(r^2 m k).
    """
    shares = log_shares.exp()
    linear = (shares.view(-1, 1, 1) * log_q.exp() * log_tangent).sum()
    quadratic = shares.new_zeros(())
    for place, row in enumerate(log_q):
        # pairs i >= place; those of different components count twice
        overlap = (log_q[place:] + row - log_tangent).logsumexp(-1).sum(-1)
        count = torch.full_like(overlap, 2.0)
        count[0] = 1.0
        quadratic = (
            quadratic + (count * (log_shares[place] + log_shares[place:] + overlap).exp()).sum()
        )
    return 1.0 - linear - quadratic


def log_density(log_shares: Tensor, log_q: Tensor, codes: Tensor) -> Tensor:
    """log q (t,) at draws of the weights.

    Args:
        log_shares (r,), log_q (r, m, k): of the mixture.
        codes (t, m): the draws, as indices into the values, int64.

    Cost: O(t r m).
    """
    functions = torch.arange(log_q.shape[1], device=codes.device)
    chosen = log_q[:, functions, codes].sum(-1)  # (r, t)
    return (log_shares.unsqueeze(1) + chosen).logsumexp(0)


def entropy_surrogate(log_probabilities: Tensor, baseline: Tensor | float) -> Tensor:
    """A scalar whose gradient is an unbiased estimate of the entropy's gradient.

    It is -mean((log q + c)^2) / 2 at fixed draws; its value has no meaning. Its mean gradient is
    -E[(log q + c) grad log q], where any constant c drops out because E grad log q = 0.

    Args:
        log_probabilities (t,): log q at draws from q, differentiable.
        baseline: c, independent of the draw; the variance is smallest near -E log q.
    """
    return -0.5 * (log_probabilities + baseline).square().mean()
