"""The variational Gaussian approximation: the Gaussian closest to the posterior over all latents.

Of all Gaussians q(f) the one that maximises the evidence lower bound has the covariance
(K^-1 + W)^-1 with a diagonal W (for p latent functions, independent under q, one for each): it is
the posterior under Gaussian sites, as in expectation propagation. At the optimum

    W_i = -2 dE_i / dv_i,    K^-1 (E f - m)_i = dE_i / dm_i,    E_i = E_q log p(y_i | f_i),

and a natural gradient step of length one puts the right sides in place of the sites.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, NotPositiveDefinite, class_name
from gpx.likelihoods.base import Likelihood
from gpx.linalg import SolveReport
from gpx.methods.classification.extrapolation import MEMORY, extrapolated
from gpx.methods.classification.mode import find_mode
from gpx.methods.classification.site_matrix import Moments, ScalarSites, moments_with_sites

MODE_TOLERANCE = 1e-2
"""Newton decrement of the mode at the start, in posterior standard deviations."""

ROUNDING, QUADRATURE = 1e-13, 1e-6
"""Relative fall of the bound that is rounding (a row), and that may be an error of quadrature."""

CANCELLED, MOST_CANCELLED = 4.0, 1e-2
"""A posterior variance v is computed by subtraction from the prior variance k, with an error of
``CANCELLED`` rounding units of k, of which a share of 1 - w v remains for a site of precision w.
With precise sites and similar rows (targets without noise) no smaller residual, relative to v, can
be reached; such a residual is accepted up to ``MOST_CANCELLED``."""

MIN_PROGRESS = 0.1
"""A step after which the bound is lower by no more than ``QUADRATURE`` is taken if the residual is
lower by this share."""

MAX_GROWTH = 10.0
"""Most growth of a site's precision in a step, in precisions of the posterior there."""

MIN_SHARE = 2.0**-30
"""Smallest part of a natural gradient step; after these halvings it no longer changes the sites."""


class Fitted(NamedTuple):
    """The closest Gaussian.

    Attributes:
        sites (2, n) or (2, p, n): precision, and precision times mean, of each site in f - m.
        matrix: K and the sites' precisions.
        moments: weights a, mean and variance of f - m, (n,) or (p, n).
        parts: terms of the bound, nats: ``fit``, E log p(y | f), and ``complexity``, minus the
            divergence from the prior.
        report: ``residual`` is the largest natural gradient: of means in posterior standard
            deviations, of variances relative.
    """

    sites: Tensor
    matrix: ScalarSites
    moments: Moments
    parts: dict[str, Tensor]
    report: SolveReport


@torch.no_grad()
def fit_gaussian(
    kernel: Tensor,
    mean: Tensor,
    likelihood: Likelihood,
    y: Tensor,
    start: Tensor | None = None,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 200,
) -> Fitted:
    """Maximise the evidence lower bound over the sites, for a log-concave likelihood.

    The bound is then concave in mean and root of the covariance, and natural gradient steps, which
    are halved until the bound rises, lead to its only maximum.

    Args:
        kernel (n, n): K of every latent function, float64.
        mean (n,): m.
        likelihood: log-concave; its p latents are independent a priori and share K.
        y (n,): targets.
        start (2, n) or (2, p, n): sites, e.g. from a similar problem; None: those of Laplace's
            approximation.
        tolerance: on ``Fitted.report.residual``; larger where rounding is (``CANCELLED``).

    Raises:
        DidNotConverge: the residual is larger after ``max_iterations`` steps.

    Cost: p n^3 multiply-adds a step (a factorisation, and a triangular solve with n columns).
    Source: Opper and Archambeau 2009; Khan and Lin 2017 (the steps); Anderson 1965 (extrapolation).
    """

    def around_mode() -> Tensor:
        return _around_mode(kernel, mean, likelihood, y)

    starts = [around_mode, lambda: _narrowed(kernel, around_mode())]
    if start is not None:
        starts.insert(0, start.clone)
    taken: _Point | None = None
    past: list[Tensor] = []  # sites, and where a full step leads, of the last points
    share, step = 1.0, 0
    while step < max_iterations and share > MIN_SHARE:
        step += 1
        if taken is None:
            sites = starts.pop(0)()
        elif len(past) > 1:
            sites = extrapolated(torch.stack(past), taken.moments.variance)
            sites[0].clamp_min_(0.0)
        else:
            sites = taken.sites + share * (taken.target - taken.sites)
        found = _at(kernel, mean, likelihood, y, sites)
        enough = max(tolerance, min(found.rounding, MOST_CANCELLED))
        if found.residual <= enough:
            small = "small" if found.residual <= tolerance else "as small as rounding allows"
            report = SolveReport(step, found.residual, True, f"the natural gradient is {small}")
            return Fitted(sites, found.matrix, found.moments, found.parts, report)
        if taken is None and not found.is_finite and starts:  # for counts exp(f) can overflow
            continue
        if taken is None or _is_better(found, taken):
            taken, share = found, min(1.0, 2.0 * share)
            past = [*past[-MEMORY:], torch.stack([found.sites, found.target])]
        elif len(past) > 1:  # back to natural gradients
            past = past[-1:]
        else:
            share *= 0.5
    residual = math.inf if taken is None else taken.residual
    other = "LaplaceGP" if type(likelihood).suits_laplace() else "SVGP"
    raise DidNotConverge(
        f"the closest Gaussian to {len(y)} latent values of the {class_name(likelihood)} "
        f"likelihood has a natural gradient of {residual:.1e} posterior standard deviations after "
        f"{step} steps, expected {tolerance:.1e}; raise max_iterations, make the kernel's "
        f"outputscale smaller, or take model={other}()"
    )


class _Point(NamedTuple):
    """What is known of one setting of the sites.

    Attributes:
        target (2, n) or (2, p, n): sites to which a full step leads.
        value: the bound in nats.
        rounding: error of the residual.
    """

    sites: Tensor
    target: Tensor
    matrix: ScalarSites
    moments: Moments
    parts: dict[str, Tensor]
    value: float
    residual: float
    rounding: float

    @property
    def is_finite(self) -> bool:
        """Whether the bound and the step from here are."""
        return math.isfinite(self.value) and math.isfinite(self.residual)


def _is_better(point: _Point, before: _Point) -> bool:
    """Whether a step is taken: the bound rises or, near the optimum, the residual falls."""
    if not point.is_finite:
        return not before.is_finite and point.value > before.value
    gain, unit = point.value - before.value, 1.0 + abs(before.value)
    return gain >= -ROUNDING * point.sites.shape[-1] * unit or (
        gain >= -QUADRATURE * unit and point.residual <= (1.0 - MIN_PROGRESS) * before.residual
    )


def _at(kernel: Tensor, mean: Tensor, likelihood: Likelihood, y: Tensor, sites: Tensor) -> _Point:
    matrix = ScalarSites(kernel, sites[0])
    moments = moments_with_sites(kernel, matrix, sites)
    centre = (mean + moments.mean).requires_grad_()
    variance = moments.variance.clone().requires_grad_()
    with torch.enable_grad():
        fit = expected_fit(likelihood, y, centre, variance)
        slope, of_variance = torch.autograd.grad(fit, (centre, variance))
    # of a log-concave likelihood only errors of quadrature make it negative
    precision = (-2.0 * of_variance).clamp_min(0.0)
    full = torch.stack([precision, slope + precision * moments.mean])
    # exp(f) of a wide f asks for far too much of a first step
    most = MAX_GROWTH * (sites[0] + 1.0 / moments.variance)
    target = sites + (most / (precision - sites[0]).clamp_min(most)) * (full - sites)
    # at the sites' own moments: K^-1 (E f - m) = shift - precision * mean
    of_mean = (slope - moments.weights).abs() * moments.variance.sqrt()
    of_precision = (precision - sites[0]).abs() * moments.variance
    worst = torch.maximum(of_mean, of_precision).max()
    quadratic = (moments.weights * moments.mean).sum()
    shrinkage = (sites[0] * moments.variance).sum()  # n - tr(K^-1 S)
    divergence = 0.5 * (quadratic - shrinkage + matrix.log_determinant.sum())
    free = (1.0 - sites[0] * moments.variance).clamp(0.0, 1.0)  # (I + W^1/2 K W^1/2)^-1
    eps = torch.finfo(kernel.dtype).eps
    cancelled = CANCELLED * eps * (free * moments.prior / moments.variance).max()
    measured = torch.stack([fit.detach() - divergence, worst, cancelled]).tolist()  # one wait
    parts = {"fit": fit.detach(), "complexity": -divergence}
    return _Point(sites, target, matrix, moments, parts, *measured)


def expected_fit(likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Sum over the rows of E log p(y | f) under marginals of f, (n,) or (p, n): ()."""
    if mean.ndim == 2:
        mean, variance = mean.mT, variance.mT
    return likelihood.expected_log_prob_of_rows(y, mean, variance, None).sum()


def _around_mode(kernel: Tensor, mean: Tensor, likelihood: Likelihood, y: Tensor) -> Tensor:
    """Sites of Laplace's approximation; zero where it is not defined or not found."""
    p = likelihood.num_latents
    zero = kernel.new_zeros(2, len(y)) if p == 1 else kernel.new_zeros(2, p, len(y))
    if not type(likelihood).suits_laplace():
        return zero
    try:
        mode = find_mode(kernel, mean, likelihood, y, tolerance=MODE_TOLERANCE)
    except (DidNotConverge, NotPositiveDefinite):
        return zero
    information, weights = mode.sites.information, mode.weights
    centred = mode.latent - (mean if p == 1 else mean.unsqueeze(1))
    if p > 1:  # the diagonal of diag(w) - w w^T
        information = information - information.square()
    sites = torch.stack([information, weights + information * centred])
    return sites if p == 1 else sites.mT.contiguous()


def _narrowed(kernel: Tensor, sites: Tensor) -> Tensor:
    """Sites with the same posterior mean and precisions of at least one."""
    moments = moments_with_sites(kernel, ScalarSites(kernel, sites[0]), sites)
    precision = sites[0].clamp_min(1.0)
    return torch.stack([precision, moments.weights + precision * moments.mean])
