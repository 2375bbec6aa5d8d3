"""Expectation propagation: replaces likelihood terms by Gaussians, by moment matching."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge
from gpx.likelihoods.base import Likelihood, Tilted
from gpx.linalg import SolveReport
from gpx.linalg.cholesky import checks_deferred
from gpx.methods.classification.extrapolation import MEMORY, extrapolated
from gpx.methods.classification.site_matrix import ScalarSites, moments_with_sites, not_zero

MIN_DAMPING = 1.0 / 32.0
"""Smallest factor on the changes of a sweep."""

MIN_PROGRESS = 0.05
"""A sweep with factor s on its changes has to reduce the mismatch of moments by this share of s,
otherwise s is halved. A small s can only remove a share of about s of the mismatch."""

RECOVERY = 1.2
"""Growth of the factor after a sweep that reduced the mismatch enough."""


class Cavities(NamedTuple):
    """Marginals of f - m (latents minus the mean function), with and without their own site.

    Attributes:
        mean, variance (..., n): of the posterior.
        cavity_mean, cavity_variance (..., n): of the posterior without site i.
    """

    mean: Tensor
    variance: Tensor
    cavity_mean: Tensor
    cavity_variance: Tensor


class Propagated(NamedTuple):
    """A fixed point of EP: posterior marginals have the moments of the tilted distributions.

    Attributes:
        sites (2, n): precision, and precision times mean, of each site in f - m.
        weights (n,): a; the posterior mean is m + k a.
        matrix: K and the sites' precisions.
        cavities: of each site.
        parts: terms of the evidence, nats: ``fit`` and ``complexity``.
        report: ``residual`` is the largest difference of moments: of means in posterior standard
            deviations, of variances relative.
        damping: factor on the changes of a sweep at the end.
    """

    sites: Tensor
    weights: Tensor
    matrix: ScalarSites
    cavities: Cavities
    parts: dict[str, Tensor]
    report: SolveReport
    damping: float


@torch.no_grad()
def propagate(
    kernel: Tensor,
    mean: Tensor,
    likelihood: Likelihood,
    y: Tensor,
    start: Tensor | None = None,
    *,
    tolerance: float = 1e-8,
    max_sweeps: int = 200,
    memory: int = MEMORY,
) -> Propagated:
    """Parallel expectation propagation: all sites are updated at once.

    A sweep computes all cavities from one factorisation and updates all sites. The next sites are
    extrapolated from those of the last sweeps and what they led to. Where this makes a precision
    negative, or brings the moments no closer, they are those of the sweep itself, whose changes are
    multiplied by a damping factor, which is halved when the moments come no closer and grows slowly
    otherwise. The evidence has no part in this: the fixed point neither maximises nor minimises it.
    For a log-concave likelihood site precisions stay positive. The precision of a cavity is then at
    least that of the prior, and is clamped there against rounding.

    Args:
        kernel (n, n): K, float64.
        mean (n,): m.
        likelihood: log-concave, with one latent function and ``tilted``.
        y (n,): targets.
        start (2, n): initial sites, e.g. from a similar problem; None: zero.
        tolerance: on ``Propagated.report.residual``.
        memory: earlier sweeps from which sites are extrapolated; 0: damped sweeps only.

    Raises:
        DidNotConverge: the moments differ by more after ``max_sweeps`` sweeps.

    Cost: n^3 multiply-adds per sweep (a factorisation, and a triangular solve with n columns).
    Source: Rasmussen and Williams 2006, section 3.6, with parallel updates; equation 3.65 for the
    evidence, rearranged to avoid division by site precisions, which may be zero. Anderson 1965 for
    the extrapolation.
    """
    sites = y.new_zeros(2, len(y)) if start is None else start.clone()
    damping, before = 1.0, math.inf
    past: list[Tensor] = []  # sites, and where a whole sweep leads, of the last sweeps
    is_extrapolated = False
    for sweep in range(1, max_sweeps + 1):
        matrix = ScalarSites(kernel, sites[0])
        weights, cavities = _cavities(kernel, matrix, sites)
        tilted = _tilted(likelihood, y, mean, cavities)
        residual = float(_mismatch(cavities, tilted))
        if residual <= tolerance:
            report = SolveReport(sweep, residual, True, "the moments match")
            parts = _evidence(sites, matrix, cavities, tilted)
            return Propagated(sites, weights, matrix, cavities, parts, report, damping)
        if is_extrapolated and not residual < before:
            past, is_extrapolated = past[-1:], False
        else:
            if not is_extrapolated:
                damping = _damped(damping, residual, before)
            before = residual
            past = [*past, torch.stack([sites, _matched(cavities, tilted)])][-(memory + 1) :]
            is_extrapolated = len(past) > 1
        if is_extrapolated:
            sites = extrapolated(torch.stack(past), cavities.variance)
            is_extrapolated = bool((sites.isfinite() & (sites[0] >= 0.0)).all())
        if not is_extrapolated:
            sites, target = past[-1]
            sites = sites + damping * (target - sites)
    raise DidNotConverge(
        f"expectation propagation on {len(y)} points has moments that differ by {residual:.1e} "
        f"after {max_sweeps} sweeps with changes damped to {damping:g} of themselves, expected "
        f"{tolerance:.1e}; raise max_sweeps, make the kernel's outputscale smaller, or take "
        "model=LaplaceGP()"
    )


class ManyPropagated(NamedTuple):
    """Fixed points of C problems; those that do not converge have zeros.

    Attributes:
        precisions, weights (C, n): of the sites, and a, as in ``Propagated``.
        converged: of each problem.
    """

    precisions: Tensor
    weights: Tensor
    converged: list[bool]


@torch.no_grad()
def propagate_many(
    kernel: Tensor,
    mean: Tensor,
    likelihood: Likelihood,
    y: Tensor,
    *,
    tolerance: float,
    max_sweeps: int,
) -> ManyPropagated:
    """``propagate`` from no sites, by damped sweeps only, for C problems with the same targets.

    They go in lockstep: a sweep factorises the matrices of all problems and then waits for the
    device once. Problems that have ended are left out on the CPU; on a device they go along, at no
    cost in time.

    Args:
        kernel (C, n, n): K of every problem, float64.
        mean (C, n): m.
        likelihood, y (n,), tolerance, max_sweeps: as in ``propagate``.
    """
    made = ManyPropagated(torch.zeros_like(mean), torch.zeros_like(mean), [False] * len(mean))
    problems = list(range(len(mean)))
    damping, before = [1.0] * len(mean), [math.inf] * len(mean)
    sites = mean.new_zeros(2, *mean.shape)
    prior = not_zero(kernel.diagonal(dim1=-2, dim2=-1))
    weights, cavities = sites[1], Cavities(sites[1], prior, sites[1], prior)
    for sweep in range(max_sweeps):
        if sweep > 0:
            with checks_deferred():  # only NaN could fail, which the mismatch shows
                matrix = ScalarSites(kernel, sites[0])
            weights, cavities = _cavities(kernel, matrix, sites)
        tilted = _tilted(likelihood, y, mean, cavities)
        residual = _mismatch(cavities, tilted).tolist()
        for row, problem in enumerate(problems):
            if residual[row] <= tolerance and not made.converged[problem]:
                made.precisions[problem], made.weights[problem] = sites[0, row], weights[row]
                made.converged[problem] = True
        going = [row for row, problem in enumerate(problems) if not made.converged[problem]]
        going = [row for row in going if not math.isnan(residual[row])]
        if not going:
            break
        damping = [_damped(*state) for state in zip(damping, residual, before, strict=True)]
        factor = mean.new_tensor(damping).unsqueeze(-1)
        sites = sites + factor * (_matched(cavities, tilted) - sites)
        before = residual
        if kernel.is_cpu and len(going) < len(problems):
            kernel, mean, sites = kernel[going], mean[going], sites[:, going]
            problems = [problems[row] for row in going]
            damping, before = [damping[row] for row in going], [before[row] for row in going]
    return made


def _tilted(likelihood: Likelihood, y: Tensor, mean: Tensor, cavities: Cavities) -> Tilted:
    """The tilted distributions; of a log-concave likelihood only errors of quadrature, in the far
    tails, make the information negative, which a site precision cannot be.
    """
    found = likelihood.tilted(y, mean + cavities.cavity_mean, cavities.cavity_variance)
    return found._replace(information=found.information.clamp_min(0.0))


def _damped(damping: float, residual: float, before: float) -> float:
    """Factor on the changes of a sweep, from those of the last one and what it did."""
    if residual > (1.0 - MIN_PROGRESS * damping) * before:
        return max(MIN_DAMPING, 0.5 * damping)
    return min(1.0, RECOVERY * damping)


def _matched(cavities: Cavities, tilted: Tilted) -> Tensor:
    """Sites (2, ..., n) with the moments of the tilted distributions."""
    # new site precision: that of the tilted distribution, 1 / (v - v^2 w), minus the cavity's
    shrinkage = 1.0 - cavities.cavity_variance * tilted.information
    shift = tilted.gradient + cavities.cavity_mean * tilted.information
    return torch.stack([tilted.information, shift]) / shrinkage


def _cavities(kernel: Tensor, matrix: ScalarSites, sites: Tensor) -> tuple[Tensor, Cavities]:
    """a (..., n), and the cavities."""
    weights, mean, variance, prior = moments_with_sites(kernel, matrix, sites)
    precision = torch.maximum(1.0 / variance - sites[0], 1.0 / prior)
    cavity_variance = 1.0 / precision
    cavity_mean = cavity_variance * (mean / variance - sites[1])
    return weights, Cavities(mean, variance, cavity_mean, cavity_variance)


def _mismatch(cavities: Cavities, tilted: Tilted) -> Tensor:
    """Largest difference between the moments of the tilted distributions and of the posterior."""
    v = cavities.cavity_variance
    mean = cavities.cavity_mean + v * tilted.gradient
    variance = v - v.square() * tilted.information
    of_mean = (mean - cavities.mean).abs() / variance.sqrt()
    of_variance = (variance / cavities.variance - 1.0).abs()
    return torch.maximum(of_mean, of_variance).amax(-1)


def _evidence(
    sites: Tensor, matrix: ScalarSites, cavities: Cavities, tilted: Tilted
) -> dict[str, Tensor]:
    """Terms of log Z, nats."""
    log_ratio = (sites[0] * cavities.cavity_variance).log1p()
    quadratic = cavities.cavity_mean.square() / cavities.cavity_variance
    quadratic = quadratic - cavities.mean.square() / cavities.variance
    fit = tilted.log_normaliser.sum() + 0.5 * (log_ratio + quadratic).sum()
    return {
        "fit": fit + 0.5 * torch.dot(sites[1], cavities.mean),
        "complexity": -0.5 * matrix.log_determinant,
    }
