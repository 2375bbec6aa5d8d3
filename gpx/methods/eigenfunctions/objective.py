"""Log marginal likelihood of regression on the eigenfunctions of a grid."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.eigenfunctions.evidence import eigenfunction_evidence


@runtime_checkable
class EigenModel(Protocol):
    """What the evidence asks of a model on eigenfunctions of a grid."""

    basis: GridEigenfunctions
    mean: Mean
    likelihood: Gaussian
    correction: bool

    def facts(self) -> Facts:
        """Plain values for the record."""


class EigenfunctionEvidence(Objective[EigenModel]):
    """Log marginal likelihood of ``GRIEF``: exact for the kernel that its basis stands for.

    Exactness: an estimate of the log marginal likelihood of the kernel itself, from neither side.
    Cost and source: ``gpx.methods.eigenfunctions.evidence.eigenfunction_evidence``.
    """

    batching = "full"
    kind = "estimate"
    models = (EigenModel,)
    made_for = "GRIEF"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self, model: EigenModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``EigenfunctionTerms``."""
        self.check(model)
        value, terms = eigenfunction_evidence(
            model.basis,
            x,
            y - model.mean(x),
            model.likelihood.noise_variance,
            correction=model.correction,
        )
        return Evidence(value, self.kind, terms._asdict(), None, model.facts())
