"""Inducing points at the centres of k-means clusters of the inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inducing.base import Selection, Selector, random_rows
from gpx.kernels.base import Kernel
from gpx.kernels.categorical import Categorical
from gpx.linalg import running_sum
from gpx.tensor_checks import check_at_least

CHUNK_ENTRIES = 2**23
"""Entries of one block of the distance table (64 MiB in float64)."""


class KMeans(Selector):
    """Centres of k-means: k-means++ seeding, then Lloyd iterations.

    Distances are between inputs divided by the kernel's lengthscales if it has one per input (or a
    single one), otherwise by the standard deviation of each input. Empty clusters are refilled by
    uniform draws from the data. Inputs of a ``Categorical`` kernel are copied from the row nearest
    to the centre. The default of every sparse model: centres follow the data and keep a distance
    from each other. They are not training rows. With fewer distinct inputs than centres, centres
    are repeated.

    Args:
        max_iterations: limit of Lloyd iterations.
        max_points: with more data than this, cluster a uniform subset of this size.

    Cost: O(n M d) per iteration with n <= max_points; memory does not hold n x M.
    Source: Burt thesis, section 3.1.2.
    """

    def __init__(self, max_iterations: int = 100, max_points: int = 20_000) -> None:
        check_at_least(0, max_iterations=max_iterations)
        check_at_least(1, max_points=max_points)
        self.max_iterations = max_iterations
        self.max_points = max_points

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        n = x.shape[0]
        size = max(self.max_points, num_inducing)
        if n > size:
            x = x[random_rows(n, size, x, generator)]
        scale = distance_unit(x, kernel)
        points = x / scale
        centres = _seed(points, num_inducing, generator)
        assigned: Tensor | None = None
        for _ in range(self.max_iterations):
            nearest = nearest_centre(points, centres)
            if assigned is not None and bool((nearest == assigned).all()):
                break
            assigned = nearest
            counts = torch.bincount(assigned, minlength=num_inducing)
            sums = torch.zeros_like(centres).index_add_(0, assigned, points)
            centres = sums / counts.clamp(min=1).unsqueeze(1)
            empty = (counts == 0).nonzero().squeeze(1)
            if empty.numel():
                centres[empty] = points[random_rows(points.shape[0], empty.numel(), x, generator)]
        found = centres * scale
        columns = category_columns(kernel, x.shape[1])
        if columns:  # a mean of categories is not a category
            found[:, columns] = x[nearest_centre(centres, points)][:, columns]
        return Selection(points=found)


def category_columns(kernel: Kernel, num_inputs: int) -> list[int]:
    """Columns used by ``Categorical`` kernels within a kernel."""
    found: set[int] = set()
    for part in kernel.modules():
        if isinstance(part, Categorical):
            groups = [range(num_inputs)] if part.groups is None else part.groups
            found.update(column for group in groups for column in group)
    return sorted(found)


def distance_unit(x: Tensor, kernel: Kernel) -> Tensor:
    """Unit of distance per input (d,): the kernel's lengthscales, else standard deviations."""
    d = x.shape[1]
    lengthscale = getattr(kernel, "lengthscale", None)
    if (
        isinstance(lengthscale, Tensor)
        and lengthscale.numel() in (1, d)
        and getattr(kernel, "active_dims", None) is None
    ):
        return lengthscale.detach().reshape(-1).to(x).expand(d)
    spread = x.std(0, correction=0)
    return torch.where(spread > 0, spread, torch.ones_like(spread))


def _seed(points: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """k-means++: each centre drawn with probability proportional to its squared distance."""
    n = points.shape[0]
    draws = torch.rand(k, generator=generator, device=points.device, dtype=torch.float64)
    chosen = torch.empty(k, dtype=torch.long, device=points.device)
    chosen[0] = (draws[0] * n).long().clamp_(max=n - 1)
    distance = torch.full((n,), torch.inf, dtype=points.dtype, device=points.device)
    for i in range(1, k):
        gap = (points - points[chosen[i - 1]]).square_().sum(1)
        distance = torch.minimum(distance, gap)
        mass = running_sum(distance.double())
        # all points already covered (repeated inputs): fall back to a uniform draw
        index = torch.searchsorted(mass, draws[i] * mass[-1], right=True)
        uniform = (draws[i] * n).long()
        chosen[i] = torch.where(mass[-1] > 0, index, uniform).clamp_(max=n - 1)
    return points[chosen]


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """Index of the nearest centre (n,), in chunks of points."""
    middle = centres.mean(0)  # centred, since distances from products are inexact far from zero
    centred = centres - middle
    half_norm = 0.5 * centred.square().sum(1)
    step = max(1, CHUNK_ENTRIES // centres.shape[0])
    return torch.cat(
        [
            torch.addmm(half_norm, part - middle, centred.T, alpha=-1.0).argmin(1)
            for part in points.split(step)
        ]
    )
