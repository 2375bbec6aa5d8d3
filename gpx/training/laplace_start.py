"""Initial hyperparameters for classes and counts, by Laplace's approximation on some rows."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor

from gpx.constraints import lower_limits
from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.likelihoods.base import Likelihood, is_classification
from gpx.methods.base.model import Hyperparameters
from gpx.models import LaplaceGP
from gpx.objectives import LaplaceEvidence
from gpx.priors import Priors
from gpx.training.lbfgsb import LBFGSB

MAX_ROWS = 500
"""Rows used with one latent function; with C functions a Newton step costs C n^3."""


def has_laplace_start(likelihood: Likelihood) -> bool:
    """Whether there is such a start: log-concave likelihoods of classes or counts."""
    return likelihood.log_concave and (
        is_classification(likelihood.task) or likelihood.task == "count"
    )


def laplace_rows(likelihood: Likelihood) -> int:
    """Rows used: with C latent functions as many as cost the same as ``MAX_ROWS`` with one."""
    return max(2, int(MAX_ROWS / likelihood.num_latents ** (1 / 3)))


def start_by_laplace(
    parts: Hyperparameters,
    x: Tensor,
    y: Tensor,
    max_evaluations: int,
    priors: Priors | None,
    say: Callable[[str], None],
) -> None:
    """Maximise Laplace's approximation of the evidence over kernel, mean and likelihood.

    A variational bound maximised from constants would need thousands of steps to reach an
    outputscale in the hundreds, as separable classes have. Where Laplace's approximation fails,
    the user is told and the parts stay as they are.

    Args:
        parts: of a model, changed in place.
        x (n, d), y (n,): rows in float64.
        max_evaluations: limit of evaluations of the evidence.
        priors: of hyperparameters.
        say: takes lines for the user.

    Cost: C n^3 for each Newton step, with C latent functions; several steps per evaluation.
    """
    laplace, objective = LaplaceGP(**copy.deepcopy(parts)._asdict()).double(), LaplaceEvidence()
    parameters = [each for each in laplace.parameters() if each.requires_grad]
    if not parameters:
        return

    def loss() -> Tensor:
        value = objective.evidence(laplace, x, y).value
        if priors is not None:
            value = value + priors.log_prob(laplace)
        return value / -len(x)

    def after_evaluation(number: int, value: float, replayed: bool) -> None:
        if number == 1 or number % 20 == 0:
            say(
                f"init: Laplace's approximation on {len(x)} points, evaluation {number}, "
                f"evidence/point {-value:+.4f}"
            )

    try:
        LBFGSB(ftol=1e-7, gtol=1e-4).minimise(
            parameters,
            loss,
            max_evaluations,
            after_evaluation,
            lower=lower_limits(laplace, parameters),
        )
    except (NotPositiveDefinite, DidNotConverge) as error:
        say(f"init: Laplace's approximation failed ({error}), starting from constants")
        return
    for source, target in (
        (laplace.kernel, parts.kernel),
        (laplace.mean, parts.mean),
        (laplace.likelihood, parts.likelihood),
    ):
        target.load_state_dict({k: v.detach().clone() for k, v in source.state_dict().items()})
