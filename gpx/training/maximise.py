"""Maximisation of a density of some rows, from which the hyperparameters of a model start."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from gpx.bounds import limits_within
from gpx.priors import Priors
from gpx.training.resumable_search import ResumableSearch

Say = Callable[[str], None]
SAY_EVERY = 20
"""Evaluations between two lines for the user."""


def maximise(
    module: nn.Module,
    log_density: Callable[[], Tensor],
    rows: int,
    max_evaluations: int,
    *,
    ftol: float = 1e-7,
    gtol: float = 1e-4,
    priors: Priors | None = None,
    say: Say | None = None,
    what: str = "",
    measure: str = "evidence/point",
) -> None:
    """Maximise a log density, plus that of the priors, over the trained parameters of a module.

    Args:
        module: changed in place; fixed parameters stay, and bounds that it remembers hold
            (``gpx.bounds.remember_bounds``).
        log_density: gives nats (), summed over the rows, at the current parameters.
        rows: number of rows; tolerances are per row.
        max_evaluations: limit of evaluations of the density.
        ftol, gtol: as of ``ResumableSearch``.
        priors: of hyperparameters.
        say: takes lines for the user; None: nothing is said.
        what, measure: the density and its values, in these lines.
    """
    parameters = [each for each in module.parameters() if each.requires_grad]
    if not parameters:
        return

    def loss() -> Tensor:
        value = log_density()
        if priors is not None:
            value = value + priors.log_prob(module, all_known=False)
        return value / -rows

    def after_evaluation(number: int, value: float, replayed: bool) -> None:
        if say is not None and (number == 1 or number % SAY_EVERY == 0):
            say(f"init: {what}, evaluation {number}, {measure} {-value:+.4f}")

    lower, upper = limits_within(module, parameters)
    ResumableSearch(ftol=ftol, gtol=gtol).minimise(
        parameters,
        loss,
        max_evaluations,
        after_evaluation,
        lower=lower,
        upper=upper if min(upper) < math.inf else None,
    )
