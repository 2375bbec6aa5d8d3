"""log E p(y | f) under a normal f for a density that rises to one peak of f and falls from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

DROP = 45.0
"""Nats below its maximum from where on the integrand is left out: below rounding."""

REACH = 9.5
"""Standard deviations of f beyond which the integrand has fallen by ``DROP``, on both outer sides
of the latent mean and of the peak of p(y | f)."""

FIRST_STEPS, FIRST_SHARE = 24, 1e-6
"""Points of the first mesh on each side of the latent mean and of the peak, at distances that grow
by one factor from this share of the range (at most ``FIRST_DISTANCE`` deviations) to all of it."""
FIRST_DISTANCE = 0.1

MESHES, MESH_POINTS = 5, 64
"""Meshes after the first, each from the heights on the one before, and their points."""

PEAK_SHARE = 0.3
"""Share of a mesh that is spent beside its local maxima, however low they are as yet."""

PANELS, PANEL_NODES = 28, 8
"""Panels of the integral, and Gauss-Legendre nodes of each."""


def log_expectation(
    log_density: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, peak: Tensor
) -> Tensor:
    """log E p(f) in nats under f ~ N(mean, variance), p unimodal in f.

    p falls on both sides of its peak, but need not be log-concave, so that p times the normal
    density may have two maxima, a narrow one near the peak and a wide one near the mean, between
    which all of it lies. A mesh between the two, finest at both, is remade several times so that
    the square root of the depth below the maximum changes by the same from point to point; a normal
    bump is then cut into equal parts. The last mesh bounds panels of Gauss-Legendre nodes.

    Args:
        log_density: log p(f), nats, elementwise: (..., n) -> (..., n).
        mean, variance (n,): of f, float64; the variance is positive.
        peak (n,): where p is largest; exact to the width of p there, or anywhere so far on its side
            that p has fallen to its limit.

    Returns:
        (n,), differentiable in mean, variance and what ``log_density`` depends on. The error is
        below 1e-6 nats in the cases of ``tests/likelihoods/test_latent_integral.py``.

    Cost: about 640 evaluations of ``log_density`` for each entry, 224 of them with gradients.
    """
    deviation = variance.sqrt()

    def height(steps: Tensor) -> Tensor:
        """Log density of f and y together at deviations from the mean, up to a constant."""
        return log_density(mean + deviation * steps) - 0.5 * steps.square()

    with torch.no_grad():
        mesh = _first_mesh((peak - mean) / deviation)
        for _ in range(MESHES):
            mesh = _even_mesh(mesh, height(mesh), MESH_POINTS)
        edges = _even_mesh(mesh, height(mesh), PANELS + 1)
        nodes, weights = (part.to(edges.device) for part in _rule())
        widths = edges.diff(dim=0)
        steps = (edges[:-1, None] + widths[:, None] * nodes[:, None]).flatten(0, 1)
        tiny = torch.finfo(widths.dtype).tiny
        shares = (widths[:, None] * weights[:, None]).clamp_min(tiny).log().flatten(0, 1)
    total = torch.logsumexp(height(steps) + shares, dim=0)
    return total - 0.5 * math.log(2.0 * math.pi)


def _first_mesh(peak: Tensor) -> Tensor:
    """Points (J, n), ascending, from ``REACH`` beyond 0 and ``peak`` (n,), finest at both."""
    low, high = peak.clamp_max(0.0) - REACH, peak.clamp_min(0.0) + REACH
    length = high - low
    nearest = (FIRST_SHARE * length).clamp_max(FIRST_DISTANCE)
    share = torch.linspace(0.0, 1.0, FIRST_STEPS, dtype=peak.dtype, device=peak.device)[:, None]
    distances = nearest * (length / nearest).pow(share)
    ends = [torch.zeros_like(peak), peak]
    points = [part for end in ends for part in (end[None], end - distances, end + distances)]
    return torch.cat(points).clamp(low, high).sort(dim=0).values


def _even_mesh(mesh: Tensor, height: Tensor, count: int) -> Tensor:
    """Points (count, n) between which the root of the depth changes evenly, and near all maxima.

    Args:
        mesh, height (J, n): points, ascending, and heights there.
        count: of points.
    """
    height = height.nan_to_num(nan=-math.inf, neginf=-math.inf)
    depth = (height.amax(0) - height).clamp_max(DROP)
    change = depth.sqrt().diff(dim=0).abs()
    # a maximum between points may be far above both, so that its neighbours seem as low as others
    outside = torch.full_like(height[:1], -math.inf)
    before, after = torch.cat([outside, height[:-1]]), torch.cat([height[1:], outside])
    top = ((height >= before) & (height >= after) & (height > -math.inf)).to(change)
    # points at both ends coincide
    beside = (top[:-1] + top[1:]) * (mesh.diff(dim=0) > 0.0)
    amount = _normalised(change) + PEAK_SHARE * _normalised(beside)
    level = torch.cat([torch.zeros_like(amount[:1]), amount.cumsum(0)])
    level = (level / level[-1]).mT.contiguous()  # (n, J)
    wanted = torch.linspace(0.0, 1.0, count, dtype=mesh.dtype, device=mesh.device)
    wanted = wanted.expand(len(level), count).contiguous()
    right = torch.searchsorted(level, wanted).clamp(1, level.shape[1] - 1)
    lower, upper = level.gather(1, right - 1), level.gather(1, right)
    part = (wanted - lower) / (upper - lower).clamp_min(torch.finfo(mesh.dtype).tiny)
    columns = mesh.mT
    left, end = columns.gather(1, right - 1), columns.gather(1, right)
    return (left + part.clamp(0.0, 1.0) * (end - left)).mT


def _normalised(amount: Tensor) -> Tensor:
    """Of sum one over the first dimension, or zero throughout."""
    return amount / amount.sum(0).clamp_min(torch.finfo(amount.dtype).tiny)


@lru_cache
def _rule() -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes between 0 and 1, and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(PANEL_NODES)
    return torch.from_numpy(0.5 * (nodes + 1.0)), torch.from_numpy(0.5 * weights)
