"""Mode of the posterior over latent values, by Newton's method with a line search."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, class_name
from gpx.likelihoods.base import Likelihood
from gpx.linalg import SolveReport
from gpx.methods.classification.site_matrix import SiteMatrix, site_matrix

MAX_HALVINGS = 30
"""Most halvings of a Newton step; after these it no longer moves the latents."""

NEAR, TINY = 0.1, 1e-6
"""Newton decrements, in posterior standard deviations, below which a step may be judged by the
slope at its end, and below which it is taken whole. The change of the objective is about half the
squared decrement; for counts of a million and more that is less than its rounding."""


class Mode(NamedTuple):
    """The maximum of p(y | f) N(f; m, K).

    Attributes:
        weights (n,) or (n, p): a = K^-1 (f - m), which equals d log p(y | f) / df at the mode.
        latent (n,) or (n, p): f.
        log_likelihood (): log p(y | f), nats.
        sites: K and W at the mode.
        report: ``residual`` is the largest entry of d log p / df - a.
    """

    weights: Tensor
    latent: Tensor
    log_likelihood: Tensor
    sites: SiteMatrix
    report: SolveReport


@torch.no_grad()
def find_mode(
    kernel: Tensor,
    mean: Tensor,
    likelihood: Likelihood,
    y: Tensor,
    start: Tensor | None = None,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 100,
) -> Mode:
    """Maximise log p(y | f) - (f - m)^T K^-1 (f - m) / 2 over f, for a log-concave likelihood.

    Newton steps are halved until the objective rises; near the mode, where rounding can hide the
    rise, until the slope along the step has fallen. The search ends after a step whose Newton
    decrement (the distance to the mode in posterior standard deviations) was below ``tolerance``;
    the remaining error is of the order of its square.

    Args:
        kernel (n, n): K of every latent function, float64.
        mean (n,): m.
        likelihood: defines ``curvature``; its p latents are independent a priori and share K.
        y (n,): targets.
        start (n,) or (n, p): initial weights, e.g. from a similar problem; used only if they are
            better than zero. None: zero.

    Raises:
        DidNotConverge: no convergence after ``max_iterations`` steps, or no step length raises the
            objective.

    Cost: one ``SiteMatrix`` per step (n^3 / 3 multiply-adds for one latent, p n^3 for p) and one
    more at the mode.
    Source: Rasmussen and Williams 2006, algorithms 3.1 and 3.3, with the line search of the GPML
    toolbox.
    """
    p = likelihood.num_latents
    shape = (len(y),) if p == 1 else (len(y), p)
    offset = mean if p == 1 else mean.unsqueeze(1)
    weights = y.new_zeros(shape)
    centred = weights  # f - m = K a
    value = _objective(likelihood, y, offset, weights, centred)
    if start is not None:
        centred_start = kernel @ start
        value_of_start = _objective(likelihood, y, offset, start, centred_start)
        # weights from another kernel may be worse than zero: for counts exp(K a) can overflow
        if value_of_start > value:
            weights, centred, value = start, centred_start, value_of_start
    for iteration in range(max_iterations):
        gradient, information = likelihood.curvature(y, offset + centred)
        sites = site_matrix(kernel, information)
        # (I + W K)^-1 times what remains of the gradient, which loses no digits near the mode
        remaining = gradient - weights
        step = remaining - sites.solve(kernel @ remaining)
        centred_step = kernel @ step
        squared_decrement = float((centred_step * remaining).sum())
        # near the mode a change below rounding is accepted as a rise
        threshold = value - 1e-14 * len(y) * (1.0 + abs(value))
        for halving in range(MAX_HALVINGS):
            length = 0.5**halving
            tried = weights + length * step, centred + length * centred_step
            tried_value = _objective(likelihood, y, offset, *tried)
            rises = tried_value >= threshold + 1e-4 * length * squared_decrement
            if not rises and abs(squared_decrement) <= NEAR**2:
                slope = _slope(likelihood, y, offset, *tried, centred_step)
                rises = abs(squared_decrement) <= TINY**2 or abs(slope) <= 0.5 * squared_decrement
            if rises:
                (weights, centred), value = tried, tried_value
                break
        else:  # no step length raises the objective
            break
        # only after a full step is the remaining error of the order of the squared decrement
        if abs(squared_decrement) <= tolerance**2 and length == 1.0:
            return _mode_at(kernel, offset, likelihood, y, weights, iteration + 1)
    else:
        if squared_decrement > 0.0:
            raise DidNotConverge(
                f"{_search(likelihood, y)} is {squared_decrement**0.5:.1e} posterior standard "
                f"deviations from it after {max_iterations} steps, expected {tolerance:.1e}; raise "
                "max_iterations, or make the kernel's outputscale smaller"
            )
    raise DidNotConverge(
        f"{_search(likelihood, y)} found no step that raises the posterior density after "
        f"{iteration} steps: the kernel matrix is not positive definite to rounding, or the "
        "log-density of the targets is too large for its differences to be exact; use float64, or "
        "make the kernel's outputscale smaller"
    )


def _search(likelihood: Likelihood, y: Tensor) -> str:
    """What was tried, for messages."""
    return (
        f"Newton's method for the mode of {len(y)} latent values of the {class_name(likelihood)} "
        "likelihood"
    )


def _objective(
    likelihood: Likelihood, y: Tensor, offset: Tensor, weights: Tensor, centred: Tensor
) -> float:
    """log p(y | f) - (f - m)^T a / 2 at f - m = ``centred`` = K a."""
    return float(likelihood.log_prob(y, offset + centred).sum() - 0.5 * (weights * centred).sum())


def _slope(
    likelihood: Likelihood,
    y: Tensor,
    offset: Tensor,
    weights: Tensor,
    centred: Tensor,
    centred_step: Tensor,
) -> float:
    """Derivative of ``_objective`` along a step K s = ``centred_step``."""
    gradient, _ = likelihood.curvature(y, offset + centred)
    return float((centred_step * (gradient - weights)).sum())


def _mode_at(
    kernel: Tensor, offset: Tensor, likelihood: Likelihood, y: Tensor, weights: Tensor, steps: int
) -> Mode:
    latent = offset + kernel @ weights
    gradient, information = likelihood.curvature(y, latent)
    residual = float((gradient - weights).abs().max())
    return Mode(
        weights,
        latent,
        likelihood.log_prob(y, latent).sum(),
        site_matrix(kernel, information),
        SolveReport(steps, residual, True, "the Newton decrement is below the tolerance"),
    )
