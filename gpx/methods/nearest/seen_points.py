"""Inducing points prepared for many predictions: nearest-point search and conditionals of f."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gpx.inference.batched_covariance import MIN_SQUARED_DISTANCE
from gpx.inference.neighbour_conditional import local_system, near_coordinates
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary
from gpx.linalg import cholesky
from gpx.linalg.nearest import NearestSearch
from gpx.methods.nearest.nearness import (
    Nearness,
    by_distance,
    mean_variance,
    nearest_inducing,
)

JITTER_HINT = "a larger jitter, or fewer neighbours"
"""What helps where the covariance of neighbouring inducing values has no factor."""

MIN_TREE_POINTS = 4096
"""Fewest points for which a search tree is faster than comparing with all."""

FAR_SQUARED = 1e4
"""Squared distance to the nearest point, in lengthscales, beyond which distances among the points
are not computed relative to the input, since that would lose digits."""


class SeenPoints:
    """Inducing points z (M, d) of a kernel with fixed hyperparameters.

    Everything that predictions share is computed once: the kernel's parameters, the coordinates of
    z in which distances are measured, and the search among them. For kernels that decrease with
    distance, the nearest points are found without evaluating the kernel at all M. Gradients reach
    the inputs alone.

    Args:
        kernel: copied.
        z (M, d): in the precision of the search.
        rule: which points are nearest.
        jitter: added to the covariance of the nearest points, relative to the kernel's variance.

    Cost: O(M d), for a tree O(M log M).
    """

    def __init__(self, kernel: Kernel, z: Tensor, rule: Nearness, jitter: float) -> None:
        self.z, self.rule = z, rule
        self.kernel = own = _plain(kernel)
        # whether the kernel depends on distances only
        radial = isinstance(own, Stationary) and type(own).covariance is Stationary.covariance
        self.stationary: Stationary | None = own if radial else None  # type: ignore[assignment]
        self.search: NearestSearch | None = None
        with torch.no_grad():
            self.jitter = jitter * mean_variance(own, z.double())
            self.places = self.coordinates(z.double()) if radial else None
            if by_distance(own, rule):
                self.search = NearestSearch(
                    self.coordinates(z.double()).to(z), max_brute_force=MIN_TREE_POINTS
                )

    def coordinates(self, x: Tensor) -> Tensor:
        """Coordinates (b, q) in which distances are measured, for x (b, d) in float64."""
        if self.stationary is None:
            return near_coordinates(self.kernel, x)
        return self.stationary.coordinates(self.stationary._select(x))

    def nearest(self, x: Tensor, count: int) -> Tensor:
        """Indices (b, count) of the points nearest to inputs x (b, d). Cost: b M d, or a tree's."""
        x = x.detach()  # which points are nearest has no derivative
        if self.search is None:
            return nearest_inducing(self.kernel, self.z.double(), x.double(), count, self.rule)
        return self.search(self.coordinates(x.double()).to(self.z), count)

    def conditionals(self, x: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (b, h) and variance (b,) of f(x) given u_near, in float64.

        E[f(x) | u_near] = weights^T u_near.

        Raises:
            NotPositiveDefinite: the covariance of the nearest points has no Cholesky factor.

        Cost: b h (d h + h^2 / 3) operations.
        """
        if self.stationary is None or self.places is None:
            asked = x.double().unsqueeze(1)
            system = local_system(
                self.kernel, self.z[near].double(), asked, self.jitter, hint=JITTER_HINT
            )
            return system.weights.squeeze(2), system.rest.squeeze(1)
        # differences from x, which is nearby, so that distances lose no digits
        asked = self.coordinates(x.double())
        gap = self.places[near].sub_(asked.unsqueeze(1))
        products = gap @ gap.mT
        to_input = products.diagonal(dim1=1, dim2=2).clone()
        products = products.detach()  # distances among the points do not depend on the input
        far = to_input[:, 0] > FAR_SQUARED
        if torch.compiler.is_exporting():  # exported programs cannot branch on the data
            seen = self.places[near]
            gap = torch.where(far[:, None, None], seen - seen[:, :1], gap)
            products = gap @ gap.mT
        elif bool(far.any()):  # differences from one of the points instead
            seen = self.places[near[far]]
            gap = seen - seen[:, :1]
            products[far] = gap @ gap.mT
        squares = products.diagonal(dim1=1, dim2=2).unsqueeze(2)
        among = (squares + squares.mT).sub_(products, alpha=2.0)
        least = MIN_SQUARED_DISTANCE if to_input.requires_grad else 0.0
        r2 = torch.cat([among, to_input.unsqueeze(2)], 2).clamp_min_(least)
        scale = self.stationary.outputscale
        values = self.stationary.of_squared_distance(r2) * scale
        inner, cross = values[:, :, :-1], values[:, :, -1:]
        inner.diagonal(dim1=1, dim2=2).add_(self.jitter)
        name = f"covariance of {near.shape[1]} inducing points"
        factor, _ = cholesky(inner, name=name, ladder=(0.0,), hint=JITTER_HINT)
        white = torch.linalg.solve_triangular(factor, cross, upper=False)
        weights = torch.linalg.solve_triangular(factor.mT, white, upper=True)
        return weights.squeeze(2), (scale - white.square().sum((1, 2))).clamp_min_(0.0)


def _plain(kernel: Kernel) -> Kernel:
    """A float64 copy whose parametrised parameters are replaced by their current values."""
    made = copy.deepcopy(kernel)
    for part in list(made.modules()):
        if not parametrize.is_parametrized(part):
            continue
        names = list(cast(nn.ModuleDict, part.parametrizations))
        values = {name: getattr(part, name).detach() for name in names}
        # torch's remove_parametrizations would also change the class that copies share
        del part.parametrizations
        part.__class__ = type(part).__bases__[0]
        for name, value in values.items():
            part.register_buffer(name, value.clone())
    return made.requires_grad_(False).double()
