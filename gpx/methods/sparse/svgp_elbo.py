"""The uncollapsed evidence lower bound of SVGP, estimated from mini-batches."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.constraints import cached_parameters
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import CholeskyReport
from gpx.methods.base.batch import batches_in_order, resolve_row_noise
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.sparse.svgp import BoundTerms
from gpx.tensor_checks import check_at_least


@runtime_checkable
class Variational(Protocol):
    """What the uncollapsed bound needs of a model."""

    likelihood: Likelihood

    def bound_terms(self, x: Tensor) -> BoundTerms:
        """Marginals of f at x (B, d) under q and KL(q || p)."""


class SVGPELBO(Objective[Variational]):
    """(n / B) sum over the batch of E_q log p(y | f) minus KL(q(u) || p(u)).

    An unbiased estimate, over uniformly drawn batches, of a lower bound of the log marginal
    likelihood; with all the data as the batch it is the bound itself.

    Args:
        num_data: n, the number of training points.

    Cost: O(M^3 + p M^2 B) per step.
    Source: Burt thesis, sections 2.1 and 2.2.
    """

    batching = "minibatch"
    streams = True
    kind = "unbiased"
    fixed_shapes = True
    elbo = True
    shared = "batch"
    takes_row_noise = True
    takes_missing_targets = True
    models = (Variational,)
    made_for = "SVGP"

    def __init__(self, num_data: int) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data)
        self.total = num_data

    def evidence(
        self,
        model: Variational,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        noise: RowNoise | None = None,
    ) -> Evidence:
        """Evidence with parts ``fit`` (expected log-likelihood) and ``complexity`` (KL).

        Args:
            noise: known noise variances or weights of these rows; None: those of the model, if x
                are all rows.

        Raises:
            ConfigError: the model has row noise, and that of these rows is not given.
        """
        noise = resolve_row_noise(model, noise, len(x), self.total)
        scale = self.total / x.shape[0]
        with cached_parameters(y.device, model):
            terms = model.bound_terms(x)
            each = model.likelihood.expected_log_prob_of_rows(y, *terms.marginals, noise)
            fit = each.sum() * scale
        return Evidence(
            value=fit - terms.kl,
            kind="unbiased",
            parts={"fit": fit, "complexity": terms.kl},
            report=terms.report,
        )

    @torch.no_grad()
    def full_evidence(
        self,
        model: Variational,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound of the trained q(u), computed exactly over all rows in batches.

        With a Gaussian likelihood the posterior may use the optimal q(u), whose bound is higher.
        """
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for batch in batches_in_order(model, x, y, batch_size):
            evidence = self.evidence_of(model, batch)
            share = len(batch.x) / self.total
            total += share * evidence.parts["fit"].double()
        kl = evidence.parts["complexity"]
        facts: Facts = {}
        if isinstance(evidence.report, CholeskyReport):
            facts["jitter"] = evidence.report.relative
        parts = {"fit": total, "complexity": kl}
        return Evidence(total - kl, "lower_bound", parts, evidence.report, facts)
