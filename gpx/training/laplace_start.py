"""Where hyperparameters start under classes and counts: at Laplace's evidence of some rows."""

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

MOST_ROWS = 500
"""Rows with one latent function: an evaluation takes Newton steps, of C n^3 with C functions."""


def has_laplace_start(likelihood: Likelihood) -> bool:
    """Whether Laplace's evidence says where hyperparameters are: classes and counts with a mode."""
    return likelihood.log_concave and (
        is_classification(likelihood.task) or likelihood.task == "count"
    )


def laplace_rows(likelihood: Likelihood) -> int:
    """Rows of a fit, fewer the more latent functions there are: the work of one is that of
    ``MOST_ROWS``."""
    return max(2, int(MOST_ROWS / likelihood.num_latents ** (1 / 3)))


def start_by_laplace(
    parts: Hyperparameters,
    x: Tensor,
    y: Tensor,
    max_evaluations: int,
    priors: Priors | None,
    say: Callable[[str], None],
) -> None:
    """Set kernel, mean and likelihood to the largest evidence of Laplace's approximation.

    A bound that is climbed from constants raises q and hyperparameters in turn: an outputscale in
    the hundreds, as separable classes have, is thousands of steps away. Where the evidence has no
    value, which is said, the parts stay.

    Args:
        parts: of a model, set in place.
        x (n, d), y (n,): rows in float64.
        max_evaluations: of the evidence, under L-BFGS-B.
        priors: of hyperparameters.
        say: takes lines for the user.

    Cost: C n^3 for each of some Newton steps an evaluation, C latent functions.
    """
    twin, objective = LaplaceGP(**copy.deepcopy(parts)._asdict()).double(), LaplaceEvidence()
    parameters = [each for each in twin.parameters() if each.requires_grad]
    if not parameters:
        return

    def loss() -> Tensor:
        value = objective.evidence(twin, x, y).value
        if priors is not None:
            value = value + priors.log_prob(twin)
        return value / -len(x)

    def after_evaluation(number: int, value: float, replayed: bool) -> None:
        if number == 1 or number % 20 == 0:
            say(
                f"init: Laplace's approximation on {len(x)} points, evaluation {number}, "
                f"evidence/point {-value:+.4f}"
            )

    limits = lower_limits(twin, parameters)
    try:
        LBFGSB(ftol=1e-7, gtol=1e-4).minimise(
            parameters,
            loss,
            max_evaluations,
            after_evaluation,
            lower=limits,
        )
    except (NotPositiveDefinite, DidNotConverge) as error:
        say(f"init: Laplace's approximation has no evidence ({error}), starting from constants")
        return
    for source, target in (
        (twin.kernel, parts.kernel),
        (twin.mean, parts.mean),
        (twin.likelihood, parts.likelihood),
    ):
        target.load_state_dict({k: v.detach().clone() for k, v in source.state_dict().items()})
