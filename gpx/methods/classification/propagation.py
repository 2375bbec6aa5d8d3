"""Expectation propagation: the Gaussians that match the moments which each target leaves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge
from gpx.likelihoods.base import Likelihood, Tilted
from gpx.linalg import SolveReport
from gpx.methods.classification.site_matrix import ScalarSites

LEAST_DAMPING = 1.0 / 32.0
"""Smallest share of a sweep's change that is taken."""

NEEDED = 0.05
"""Of the mismatch that a sweep removes at best, the part below which the moments came no closer. A
share s of its changes removes about s of the mismatch at best: a small share is asked for less, or
it would stay small for ever."""

RECOVERY = 1.2
"""Factor on that share after a sweep that brought the moments closer."""


class Cavities(NamedTuple):
    """Marginals of the latents less the mean function, with and without their own site.

    Attributes:
        mean, variance (n,): of the posterior.
        cavity_mean, cavity_variance (n,): of the posterior without site i.
    """

    mean: Tensor
    variance: Tensor
    cavity_mean: Tensor
    cavity_variance: Tensor


class Propagated(NamedTuple):
    """Where the posterior marginals have the moments of the tilted distributions.

    Attributes:
        sites (2, n): precision and precision times mean of each Gaussian, in f - m.
        weights (n,): a, with posterior mean m + k a.
        matrix: K and the sites' precisions.
        cavities: of each site.
        parts: terms of the evidence, nats: ``fit`` and ``complexity``.
        report: ``residual`` is the largest difference of moments, in posterior standard deviations
            (means) and relative (variances).
        damping: share of a sweep's change taken at the end.
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
) -> Propagated:
    """Expectation propagation with all sites at once.

    A sweep finds every cavity from one factorisation and moves all sites together. Whenever the
    moments come no closer, half the share of its changes is taken that was before, and a little
    more again when they do. For a log-concave likelihood site precisions stay positive, and then
    no cavity can be negative: its precision is at least that of the prior, which also bounds what
    rounding makes of it.

    Args:
        kernel (n, n): K, float64.
        mean (n,): m.
        likelihood: log-concave, of one latent, with ``tilted``.
        y (n,): targets.
        start (2, n): sites to begin at, from a similar problem; None: zero.
        tolerance: of ``Propagated.report.residual``.

    Raises:
        DidNotConverge: the moments differ by more after ``max_sweeps`` sweeps.

    Cost: n^3 multiply-adds a sweep (a factor, and a triangular solve with n columns).
    Source: Rasmussen and Williams 2006, section 3.6, in parallel; equation 3.65 for the evidence,
    here without divisions by site precisions, which may be zero.
    """
    sites = y.new_zeros(2, len(y)) if start is None else start.clone()
    damping, before = 1.0, float("inf")
    for sweep in range(1, max_sweeps + 1):
        matrix = ScalarSites(kernel, sites[0])
        cavities = _cavities(kernel, matrix, sites)
        tilted = likelihood.tilted(y, mean + cavities.cavity_mean, cavities.cavity_variance)
        residual = _mismatch(cavities, tilted)
        if residual <= tolerance:
            report = SolveReport(sweep, residual, True, "the moments match")
            parts = _evidence(sites, matrix, cavities, tilted)
            weights = sites[1] - matrix.solve(kernel @ sites[1])
            return Propagated(sites, weights, matrix, cavities, parts, report, damping)
        if residual > (1.0 - NEEDED * damping) * before:
            damping = max(LEAST_DAMPING, 0.5 * damping)
        else:
            damping = min(1.0, RECOVERY * damping)
        before = residual
        # of the tilted law: precision 1 / (v - v^2 w) less that of the cavity
        left = 1.0 - cavities.cavity_variance * tilted.information
        shift = tilted.gradient + cavities.cavity_mean * tilted.information
        sites = sites + damping * (torch.stack([tilted.information, shift]) / left - sites)
    raise DidNotConverge(
        f"expectation propagation on {len(y)} points has moments that differ by {residual:.1e} "
        f"after {max_sweeps} sweeps with changes damped to {damping:g} of themselves, expected "
        f"{tolerance:.1e}; raise max_sweeps, make the kernel's outputscale smaller, or take "
        "model=LaplaceGP()"
    )


def _cavities(kernel: Tensor, matrix: ScalarSites, sites: Tensor) -> Cavities:
    prior = kernel.diagonal()
    variance = prior - matrix.covariance(kernel)
    mean = kernel @ (sites[1] - matrix.solve(kernel @ sites[1]))
    precision = torch.maximum(1.0 / variance - sites[0], 1.0 / prior)
    cavity_variance = 1.0 / precision
    return Cavities(mean, variance, cavity_variance * (mean / variance - sites[1]), cavity_variance)


def _mismatch(cavities: Cavities, tilted: Tilted) -> float:
    """Largest difference between the moments of the tilted laws and of the posterior."""
    wide = cavities.cavity_variance
    mean = cavities.cavity_mean + wide * tilted.gradient
    variance = wide - wide.square() * tilted.information
    by_mean = (mean - cavities.mean).abs() / variance.sqrt()
    by_variance = (variance / cavities.variance - 1.0).abs()
    return float(torch.maximum(by_mean, by_variance).max())


def _evidence(
    sites: Tensor, matrix: ScalarSites, cavities: Cavities, tilted: Tilted
) -> dict[str, Tensor]:
    """Terms of log Z, nats."""
    spread = (sites[0] * cavities.cavity_variance).log1p()
    scaled = cavities.cavity_mean.square() / cavities.cavity_variance
    scaled = scaled - cavities.mean.square() / cavities.variance
    fit = tilted.log_normaliser.sum() + 0.5 * (spread + scaled).sum()
    return {
        "fit": fit + 0.5 * torch.dot(sites[1], cavities.mean),
        "complexity": -0.5 * matrix.log_determinant,
    }
