"""Log marginal likelihood of an exact Gaussian process by the solver of its model."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.exact.barely_biased_mll import BarelyBiasedMLL
from gpx.methods.exact.exact_mll import ExactMLL
from gpx.methods.exact.iterative_mll import IterativeMLL
from gpx.methods.exact.model import ExactModel


class MarginalLikelihood(Objective[ExactModel]):
    """``ExactMLL``, ``IterativeMLL`` or ``BarelyBiasedMLL``, chosen by the model's ``solver``.

    The kind and the facts of the evidence are those of the objective chosen.

    Args:
        iterative, barely_biased: the two stochastic objectives with their options; None: defaults.
    """

    batching = "full"
    takes_row_noise = True
    kind = "estimate"
    models = (ExactModel,)
    made_for = "ExactGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(
        self,
        iterative: IterativeMLL | None = None,
        barely_biased: BarelyBiasedMLL | None = None,
    ) -> None:
        super().__init__()
        self.iterative = IterativeMLL() if iterative is None else iterative
        self.barely_biased = BarelyBiasedMLL() if barely_biased is None else barely_biased
        if not isinstance(self.iterative, IterativeMLL) or not isinstance(
            self.barely_biased, BarelyBiasedMLL
        ):
            raise ConfigError(
                "iterative= must be an IterativeMLL and barely_biased= a BarelyBiasedMLL"
            )
        self.cholesky = ExactMLL()

    def path(self, model: ExactModel, x: Tensor) -> Objective:
        """The objective for the solver of ``model`` on x (n, d)."""
        self.check(model)
        paths: dict[str, Objective] = {
            "cholesky": self.cholesky,
            "iterative": self.iterative,
            "barely_biased": self.barely_biased,
        }
        return paths[model.solver_for(x).name]

    def shared_for(self, model: ExactModel, x: Tensor) -> Literal["batch", "evidence"] | None:
        """As in ``Objective``."""
        return self.path(model, x).shared

    def prepare(
        self, model: ExactModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """As in ``Objective``."""
        self.path(model, x).prepare(model, x, y, generator=generator)

    def evidence(
        self, model: ExactModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence of the chosen objective, with its kind, terms and report."""
        return self.path(model, x).evidence(model, x, y, generator=generator)
