"""Log marginal likelihood of several targets that share nothing."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.linalg import with_gradient
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.independent.evidence import Cells, target_evidences
from gpx.methods.independent.parts import StackedParts


@runtime_checkable
class SeparateTargets(Protocol):
    """What ``IndependentMLL`` needs of a model."""

    likelihood: GaussianOutputs

    def stacked(self) -> StackedParts:
        """The hyperparameters of all targets as a matrix."""

    def cells(self, x: Tensor, y: Tensor) -> Cells:
        """The data of all targets."""


class IndependentMLL(Objective[SeparateTargets]):
    """Log marginal likelihood of an ``IndependentGP``: the sum of those of its targets.

    Exactness: exact. Cost: ``target_evidences``.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "exact"
    takes_missing_targets = True
    takes_row_noise = True
    models = (SeparateTargets,)
    made_for = "IndependentGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (GaussianOutputs,)

    def evidence(
        self,
        model: SeparateTargets,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Log marginal likelihood in nats, in float64; parts are those of ``LogDensityTerms``.

        Args:
            y (n, p): NaN where a target is missing.

        Raises:
            DataError: infinite targets, or a target that was never observed.
            NotPositiveDefinite: the matrix of a target has no Cholesky factor.
        """
        parts, cells = model.stacked(), model.cells(x, y)
        gradient = torch.is_grad_enabled()
        values = parts.read()
        targets = range(len(values))
        found = target_evidences(parts, cells, targets, values.detach(), gradient=gradient)
        for error in found.failed.values():
            raise error
        terms = {
            "fit": found.fit.sum(),
            "complexity": found.complexity.sum(),
            "constant": found.constant.sum(),
        }
        value = torch.stack(list(terms.values())).sum()
        if found.gradient is not None and values.requires_grad:
            value = with_gradient(value, [values], [found.gradient])
        facts: Facts = {
            "solver": "cholesky of each target",
            "jitter": float(found.jitter.max()),
            "missing_targets": cells.missing,
        }
        return Evidence(value, self.kind, terms, None, facts)
