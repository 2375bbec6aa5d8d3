"""Initial hyperparameters for all but real targets, by Laplace's approximation on some rows."""

from __future__ import annotations

import copy
import math

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.likelihoods.base import Likelihood, is_classification
from gpx.linalg.processes import sharing
from gpx.means import Constant
from gpx.methods.base.model import Hyperparameters
from gpx.models import LaplaceGP
from gpx.objectives import LaplaceEvidence
from gpx.priors import Priors
from gpx.training.maximise import Say, maximise
from gpx.training.several_fits import Fit, best_fit, lengthen

MAX_ROWS = 500
"""Rows used with one latent function; with C functions a Newton step costs C n^3."""


TINY_MEAN = 1e-300
"""Smallest mean of targets of whose logarithm a search starts."""


def has_laplace_start(likelihood: Likelihood) -> bool:
    """Whether there is such a start: log-concave ones of classes, counts or positive targets."""
    return likelihood.suits_laplace() and (
        is_classification(likelihood.task) or likelihood.task in ("count", "positive")
    )


def laplace_rows(likelihood: Likelihood) -> int:
    """Rows used: with C latent functions as many as cost the same as ``MAX_ROWS`` with one."""
    return max(2, int(MAX_ROWS / likelihood.num_latents ** (1 / 3)))


def constant_evidence(likelihood: Likelihood, y: Tensor) -> float:
    """Log density of the targets y (n,), nats, under the most probable constant functions."""
    return _best_constants(likelihood, y)[1]


@torch.no_grad()
def start_level(parts: Hyperparameters, y: Tensor) -> None:
    """Set a constant mean that is zero to the most probable constant for targets y (n,).

    Counts and positive targets are not standardised: of a million, or in a unit in which they are
    1e-8, a search from zero takes another path, or ends before it is there.
    """
    mean, likelihood = parts.mean, parts.likelihood
    if likelihood.num_latents > 1 or likelihood.task not in ("count", "positive"):
        return
    if isinstance(mean, Constant) and mean.constant.requires_grad and not float(mean.constant):
        mean.constant.fill_(_best_constants(likelihood, y)[0][0])


def _best_constants(likelihood: Likelihood, y: Tensor) -> tuple[np.ndarray, float]:
    """The most probable constant functions (p,), and the log density under them, nats."""
    p = likelihood.num_latents

    def lacking(values: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(values).to(y).requires_grad_()
        with torch.enable_grad():
            f = at.expand(len(y)) if p == 1 else at.expand(len(y), p)
            loss = -likelihood.log_prob(y, f).sum()
        (slope,) = torch.autograd.grad(loss, at)
        return float(loss.detach()), slope.cpu().numpy()

    start = np.zeros(p)
    if likelihood.task in ("count", "positive"):
        start += math.log(max(float(y.double().mean()), TINY_MEAN))
    found = scipy.optimize.minimize(lacking, start, jac=True, method="L-BFGS-B")
    return found.x, -float(found.fun)


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
    outputscale in the hundreds, as separable classes have. A fit that explains hardly more than a
    constant function does is repeated from other lengthscales, as in ``SubsetInitialisation``.
    Where Laplace's approximation fails, the user is told and the parts stay as they are.

    Args:
        parts: of a model, changed in place.
        x (n, d), y (n,): rows in float64.
        max_evaluations: limit of evaluations of the evidence.
        priors: of hyperparameters.
        say: takes lines for the user.

    Cost: C n^3 for each Newton step, with C latent functions; several steps per evaluation.
    """
    objective = LaplaceEvidence()
    start_level(parts, y)

    def fit(factor: float) -> Fit:
        laplace = LaplaceGP(**copy.deepcopy(parts)._asdict()).double()
        if factor != 1.0:
            lengthen(laplace.kernel, factor)
        with torch.no_grad():
            again = factor != 1.0
            before = objective.evidence(laplace, x, y).value if again else y.new_tensor(-math.inf)
        maximise(
            laplace,
            lambda: objective.evidence(laplace, x, y).value,
            len(x),
            max_evaluations,
            priors=priors,
            say=say,
            what=f"Laplace's approximation on {len(x)} points",
        )
        with torch.no_grad():
            reached = objective.evidence(laplace, x, y).value
            density = 0.0 if priors is None else priors.log_prob(laplace, all_known=False)
        value = (reached + density) / len(x)
        constant = constant_evidence(laplace.likelihood, y)
        gains = reached - constant, before - constant
        # which fits follow and which is taken depends on them: no process may decide otherwise
        sharing().broadcast([value, *gains])
        return Fit(float(value), [laplace], *map(float, gains))

    try:
        (laplace,) = best_fit(fit, parts.kernel, x.shape[1], say).models
    except (NotPositiveDefinite, DidNotConverge) as error:
        say(f"init: Laplace's approximation failed ({error}), starting from constants")
        return
    for source, target in (
        (laplace.kernel, parts.kernel),
        (laplace.mean, parts.mean),
        (laplace.likelihood, parts.likelihood),
    ):
        target.load_state_dict({k: v.detach().clone() for k, v in source.state_dict().items()})
