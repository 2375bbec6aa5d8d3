"""Choice of the inducing points that an input depends on."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gpx.inference.neighbour_conditional import NearRows, near_coordinates
from gpx.kernels.base import Kernel
from gpx.kernels.constant import Constant
from gpx.kernels.stationary import Stationary
from gpx.kernels.structure import leaves
from gpx.linalg.nearest import NearestSearch, smallest_columns

Nearness = Literal["kernel", "correlation", "euclidean", "random"]
"""Largest covariance; largest correlation; smallest distance in lengthscales (a tree search; equal
to the first two for kernels that decrease with distance); random points."""

VARIANCE_POINTS = 256
"""Fewest inducing points, where there are more, over which a kernel's variance is averaged."""

SCORE_BYTES = 2**23
"""Memory of the scores of a chunk of inputs for all inducing points."""


def by_distance(kernel: Kernel, nearness: Nearness) -> bool:
    """Whether the points are chosen by the smallest distance in lengthscales."""
    falls = isinstance(kernel, Stationary) and kernel.falls
    return nearness == "euclidean" or (falls and nearness != "random")


def mean_variance(kernel: Kernel, z: Tensor) -> Tensor:
    """Prior variance () of f, to which jitter is relative, for inducing points z (M, d).

    The mean over some hundred points at even steps: at a single one, a kernel that is not
    stationary may have no variance.
    """
    if _same_everywhere(kernel):  # a step has fewer launches
        return kernel.diagonal(z[:1])[0]
    variances = kernel.diagonal(z[:: max(1, len(z) // VARIANCE_POINTS)])
    # in this form, the mean of equal variances is exactly that variance
    return variances[0] + (variances - variances[0]).mean()


def _same_everywhere(kernel: Kernel) -> bool:
    """Whether k(x, x) is known to be the same at every x."""
    known = (Stationary.variance, Constant.variance)  # subclasses may have one of their own
    return all(type(leaf).variance in known for leaf in leaves(kernel))


@torch.no_grad()
def nearest_inducing(
    kernel: Kernel, z: Tensor, x: Tensor, count: int, nearness: Nearness
) -> Tensor:
    """Indices (b, count) of the nearest inducing points z (M, d) of inputs x (b, d).

    "random" is a function of the input, so that an input always gets the same points.
    """
    if nearness == "euclidean":
        return NearRows(kernel, z)(x, count)
    if by_distance(kernel, nearness):
        search = NearestSearch(near_coordinates(kernel, z), max_brute_force=len(z))
        return search(near_coordinates(kernel, x), count)
    found = []
    for rows in x.split(max(1, SCORE_BYTES // (8 * len(z)))):
        if nearness == "random":
            draws = torch.Generator().manual_seed(0)
            direction = torch.randn(x.shape[1], generator=draws, dtype=torch.float64).to(x.device)
            phases = torch.rand(len(z), generator=draws, dtype=torch.float64).to(x.device)
            score = ((1e4 * (rows.double() @ direction).sin())[:, None] * (1.0 + phases)).sin()
        else:
            score = kernel.evaluate(rows, z)
            if nearness == "correlation":
                tiny = torch.finfo(score.dtype).tiny  # points without variance have no correlation
                score = score / kernel.diagonal(z).clamp_min(tiny).sqrt()
        found.append(smallest_columns(-score, count))
    return torch.cat(found)
