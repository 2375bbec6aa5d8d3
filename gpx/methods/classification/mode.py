"""The most probable latent functions given targets, by Newton's method with a line search."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, class_name
from gpx.likelihoods.base import Likelihood
from gpx.linalg import SolveReport
from gpx.methods.classification.site_matrix import SiteMatrix, site_matrix

HALVINGS = 30
"""Of a step, at most: after so many it no longer moves the latents."""


class Mode(NamedTuple):
    """Where p(y | f) N(f; m, K) is highest.

    Attributes:
        weights (n,) or (n, p): a = K^-1 (f - m), which equals d log p(y | f) / df there.
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

    A step goes along the Newton direction, halved until the objective rises. It ends after the
    step whose Newton decrement, the distance to the mode in posterior standard deviations, was
    below ``tolerance``: the error left is of the order of its square.

    Args:
        kernel (n, n): K of every latent function, float64.
        mean (n,): m.
        likelihood: declares ``curvature``; p latents are independent a priori and share K.
        y (n,): targets.
        start (n,) or (n, p): weights to begin at, from a similar problem, where these are better
            than zero; None: zero.

    Raises:
        DidNotConverge: not there after ``max_iterations`` steps, or no step goes up.

    Cost: a ``SiteMatrix`` (n^3 / 3 multiply-adds for one latent, p n^3 for p) a step and one more
    at the mode.
    Source: Rasmussen and Williams 2006, algorithms 3.1 and 3.3; the line search over weights is
    that of GPML.
    """
    p = likelihood.num_latents
    shape = (len(y),) if p == 1 else (len(y), p)
    offset = mean if p == 1 else mean.unsqueeze(1)
    weights = y.new_zeros(shape)
    rise = weights
    value = _objective(likelihood, y, offset, weights, rise)
    if start is not None:
        risen = kernel @ start
        there = _objective(likelihood, y, offset, start, risen)
        # weights of another kernel may be further off than none: exp(K a) of counts overflows
        if there > value:
            weights, rise, value = start, risen, there
    for iteration in range(max_iterations):
        gradient, information = likelihood.curvature(y, offset + rise)
        sites = site_matrix(kernel, information)
        target = sites.weigh(rise) + gradient
        step = target - sites.solve(kernel @ target) - weights
        move = kernel @ step
        squared = float((move * (gradient - weights)).sum())
        # near the mode a rise below rounding counts as one
        least = value - 1e-14 * len(y) * (1.0 + abs(value))
        for halving in range(HALVINGS):
            length = 0.5**halving
            tried = weights + length * step, rise + length * move
            there = _objective(likelihood, y, offset, *tried)
            if there >= least + 1e-4 * length * squared:
                (weights, rise), value = tried, there
                break
        else:  # no step goes up
            break
        # a full step at the end: from there Newton's method leaves an error of ``squared``
        if squared <= tolerance**2 and length == 1.0:
            return _at(kernel, offset, likelihood, y, weights, iteration + 1)
    raise DidNotConverge(
        f"Newton's method for the mode of {len(y)} latent values of the {class_name(likelihood)} "
        f"likelihood is {squared**0.5 if squared > 0.0 else squared:.1e} posterior standard "
        f"deviations from it after {iteration + 1} steps, expected {tolerance:.1e}; raise "
        "max_iterations, or make the kernel's outputscale smaller"
    )


def _objective(
    likelihood: Likelihood, y: Tensor, offset: Tensor, weights: Tensor, rise: Tensor
) -> float:
    """log p(y | f) - (f - m)^T a / 2 at f - m = K a."""
    return float(likelihood.log_prob(y, offset + rise).sum() - 0.5 * (weights * rise).sum())


def _at(
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
