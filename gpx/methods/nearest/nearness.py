"""Which inducing points an input sees."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gpx.inference.neighbour_conditional import near_coordinates, near_rows
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary
from gpx.linalg.nearest import NearestSearch, smallest_columns

Nearness = Literal["kernel", "correlation", "euclidean", "random"]
"""Largest covariance; largest correlation; least distance in units of the lengthscales (a tree
search; the same as the first two for kernels that fall with the distance); points at random."""

SCORE_BYTES = 2**23
"""Of the scores of one chunk of inputs against all inducing points."""


def by_distance(kernel: Kernel, nearness: Nearness) -> bool:
    """Whether the points are chosen at the least distance in units of the lengthscales."""
    falls = isinstance(kernel, Stationary) and kernel.falls
    return nearness == "euclidean" or (falls and nearness != "random")


@torch.no_grad()
def nearest_inducing(
    kernel: Kernel, z: Tensor, x: Tensor, count: int, nearness: Nearness
) -> Tensor:
    """Numbers (b, count) of the inducing points z (M, d) that inputs x (b, d) see.

    "random" depends on the input alone: an input sees the same points whenever it is asked.
    """
    if nearness == "euclidean":
        return near_rows(kernel, z, x, count)
    if by_distance(kernel, nearness):  # no kernel value is needed to rank them
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
                score = score / kernel.diagonal(z).sqrt()
        found.append(smallest_columns(-score, count))
    return torch.cat(found)
