"""Log marginal likelihood of regression on the eigenfunctions of a grid."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.models.base import Model
from gpx.models.grief import GRIEF
from gpx.models.grief_evidence import eigenfunction_evidence
from gpx.objectives.base import Evidence, Objective


class EigenfunctionEvidence(Objective):
    """Log marginal likelihood of ``GRIEF``: exact for the kernel that its basis stands for.

    Exactness: an estimate of the log marginal likelihood of the kernel itself, from neither side.
    Cost and source: ``gpx.models.grief_evidence.moving_basis_evidence``.
    """

    batching = "full"
    kind = "estimate"
    models: ClassVar[tuple[type[Model], ...]] = (GRIEF,)
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``EigenfunctionTerms``."""
        self.check(model)
        assert isinstance(model, GRIEF)
        value, terms = eigenfunction_evidence(
            model.basis,
            x,
            y - model.mean(x),
            model.likelihood.noise_variance,
            correction=model.correction,
        )
        return Evidence(value, self.kind, terms._asdict(), None, model.facts())
