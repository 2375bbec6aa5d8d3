"""Log marginal likelihood of regression on the eigenfunctions of a grid."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.eigenfunctions.evidence import eigenfunction_evidence
from gpx.methods.eigenfunctions.model import GRIEF


class EigenfunctionEvidence(Objective):
    """Log marginal likelihood of ``GRIEF``: exact for the kernel that its basis stands for.

    Exactness: an estimate of the log marginal likelihood of the kernel itself, from neither side.
    Cost and source: ``gpx.methods.eigenfunctions.evidence.eigenfunction_evidence``.
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
