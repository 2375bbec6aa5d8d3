"""The predictive log likelihood: sparse and deep models trained for their predictive densities."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from gpx.inference.variational import OPTIMAL
from gpx.likelihoods.base import Likelihood
from gpx.linalg import CholeskyReport
from gpx.methods.base.batch import Batch
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.elbo import Pass, Sampled, SampledELBO
from gpx.tensor_checks import check_not_negative


@runtime_checkable
class KnownMarginals(Protocol):
    """A model whose latent marginals are closed forms, such as ``SVGP``."""

    def bound_terms(self, x: Tensor) -> Any:
        """Marginals of f at x (B, d) under q, KL(q || p) in nats, and a report."""


class PredictiveLogLikelihood(SampledELBO):
    """(n / B) sum over a batch of log E_q p(y | f), minus beta KL(q || p).

    The density of y is that of a prediction, log E p(y | f) where the evidence lower bound has
    E log p(y | f). Variances are then trained to fit the errors of the mean, so that predictive
    densities are often better than those of the bound, and noise variances smaller: the variance of
    f takes the noise's place where the inducing points cannot follow the data. It is no bound of
    the evidence, and its hyperparameters are not those of a marginal likelihood.

    Args:
        num_data: n, the number of training points.
        num_samples: S, draws of the lower layers of a deep model. The density of a row is the
            logarithm of the mean of S densities, which in expectation is below that of all draws
            and rises to it with S. Without lower layers (``SVGP``) nothing is drawn.
        expected: average densities over the Gaussian marginals of the last layer. False: over draws
            of f, whose logarithm is further below.
        beta: weight of the divergence, not negative. Smaller values fit the training rows closer.

    Raises:
        ConfigError: numbers below one, or ``beta`` negative or not finite.

    Cost: that of the lower bound, ``num_samples`` passes through deep models.
    Source: Jankowiak, Pleiss and Gardner, "Parametric Gaussian process regressors", ICML 2020; for
    deep models "Deep sigma point processes", UAI 2020, with draws in place of learned points.
    """

    kind = "estimate"
    elbo = False
    fixed_shapes = True
    streams = True
    takes_missing_targets = True
    made_for = "SVGP"

    def __init__(
        self, num_data: int, num_samples: int = 8, *, expected: bool = True, beta: float = 1.0
    ) -> None:
        super().__init__(num_data, num_samples, expected=expected)
        check_not_negative(finite=True, beta=beta)
        self.beta = beta

    def recordable(self, model: Sampled) -> bool:
        """As in ``Objective``; with Gaussian noise, as other densities may wait for the device."""
        if not isinstance(model.likelihood, OPTIMAL):
            return False
        if isinstance(model, KnownMarginals):
            return Objective.recordable(self, model)
        return super().recordable(model)

    def shared_for(self, model: Sampled, x: Tensor) -> Literal["batch", "evidence"] | None:
        """As in ``Objective``: batches, where nothing is drawn."""
        return "batch" if isinstance(model, KnownMarginals) else None

    def _pass(self, model: Sampled, x: Tensor, **source: Any) -> Pass:
        if not isinstance(model, KnownMarginals):
            return super()._pass(model, x, **source)
        marginals, kl, report = model.bound_terms(x)
        return Pass(Marginals(*(part.unsqueeze(0) for part in marginals)), kl, report)

    def _fit(self, likelihood: Likelihood, batch: Batch, f: Marginals | Tensor) -> Tensor:
        noise, weighed = batch.noise, None
        if noise is not None and not likelihood.weights_divide_noise:
            # a row counts w times in the mean over draws, not with the w-th power in each
            noise, weighed = None, noise
        if isinstance(f, Marginals):
            each = likelihood.log_predictive_of_rows(batch.y, *f, noise)
        else:
            each = likelihood.log_prob_of_rows(batch.y, f, noise)
        found = each.logsumexp(0) - math.log(len(each))
        return (found if weighed is None else found / weighed.relative.to(found)).sum()

    def _evidence(self, model: Sampled, fit: Tensor, last: Pass) -> Evidence:
        kl = model.kl() if last.kl is None else last.kl
        parts = {"fit": fit, "complexity": self.beta * kl}
        return Evidence(fit - parts["complexity"], "estimate", parts, last.report)

    def full_evidence(self, model: Sampled, x: Tensor, y: Tensor, **options: Any) -> Evidence:
        """As in ``SampledELBO``, with the jitter of the inducing points' covariance."""
        found = super().full_evidence(model, x, y, **options)
        if not isinstance(found.report, CholeskyReport):
            return found
        return replace(found, facts={"jitter": found.report.relative})
