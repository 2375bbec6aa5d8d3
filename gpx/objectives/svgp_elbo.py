"""The uncollapsed evidence lower bound of SVGP, estimated from mini-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.models.base import Model
from gpx.models.svgp import SVGP
from gpx.objectives.base import Evidence, Objective


class SVGPElbo(Objective):
    """(n / B) sum over the batch of E_q log p(y | f) minus KL(q(u) || p(u)).

    An unbiased estimate, over uniformly drawn batches, of a lower bound of the log marginal
    likelihood; with all the data as the batch it is the bound itself.

    Args:
        num_data: n, the number of training points.

    Cost: O(M^3 + p M^2 B) per step.
    Source: sgpr_cglb_diagnostics 2.7.
    """

    batching = "minibatch"
    kind = "unbiased"
    models = (SVGP,)

    def __init__(self, num_data: int) -> None:
        super().__init__()
        if num_data < 1:
            raise ConfigError(f"num_data must be at least 1, got {num_data}")
        self.total = num_data

    def evidence(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence with parts ``fit`` (expected log-likelihood) and ``complexity`` (KL)."""
        assert isinstance(model, SVGP)  # checked once, in one sentence, by ``check``
        terms = model.bound_terms(x)
        scale = self.total / x.shape[0]
        fit = model.likelihood.expected_log_prob(y, *terms.marginals).sum() * scale
        return Evidence(
            value=fit - terms.kl,
            kind="unbiased",
            parts={"fit": fit.detach(), "complexity": terms.kl.detach()},
            report=terms.report,
        )

    def num_data(self, x: Tensor) -> int:
        """n, whatever the batch."""
        return self.total
