"""Initial hyperparameters for classes and counts, by Laplace's approximation on some rows."""

from __future__ import annotations

import copy

from torch import Tensor

from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.likelihoods.base import Likelihood, is_classification
from gpx.methods.base.model import Hyperparameters
from gpx.models import LaplaceGP
from gpx.objectives import LaplaceEvidence
from gpx.priors import Priors
from gpx.training.maximise import Say, maximise

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
    say: Say,
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
    try:
        maximise(
            laplace,
            lambda: objective.evidence(laplace, x, y).value,
            len(x),
            max_evaluations,
            priors=priors,
            say=say,
            what=f"Laplace's approximation on {len(x)} points",
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
