"""Inducing points prepared for many questions: which are near an input, and what they say of f."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gpx.inference.neighbour_conditional import local_system, near_coordinates
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary
from gpx.linalg import cholesky
from gpx.linalg.nearest import NearestSearch
from gpx.methods.nearest.nearness import Nearness, by_distance, nearest_inducing

SMALL = 4096
"""Points up to which comparing with all of them is faster than a tree."""

FAR = 1e4
"""Squared distance in units of the lengthscale beyond which an input is far from what it sees."""


class SeenPoints:
    """Inducing points z (M, d) of a kernel that does not change any more.

    All that predictions share is made once: the kernel's parameters as plain numbers, the places
    of z where distances are measured, and the search among them. Kernels that fall with the
    distance are ranked by it and not evaluated at all M. No gradients: call it where none are
    recorded.

    Args:
        kernel: copied.
        z (M, d): in the precision in which ``nearest`` searches.
        rule: which are near.
        jitter: added to the covariance of those seen, relative to the kernel's variance.

    Cost: O(M d), a tree O(M log M).
    """

    def __init__(self, kernel: Kernel, z: Tensor, rule: Nearness, jitter: float) -> None:
        self.z, self.rule = z, rule
        self.kernel = own = _plain(kernel)
        # a kernel of distances alone, as its class writes it
        radial = isinstance(own, Stationary) and type(own).covariance is Stationary.covariance
        self.stationary: Stationary | None = own if radial else None  # type: ignore[assignment]
        self.search: NearestSearch | None = None
        with torch.no_grad():
            self.jitter = jitter * own.diagonal(z[:1].double()).mean()
            self.places = self.coordinates(z.double()) if radial else None
            if by_distance(own, rule):
                self.search = NearestSearch(
                    self.coordinates(z.double()).to(z), max_brute_force=SMALL
                )

    def coordinates(self, x: Tensor) -> Tensor:
        """Where distances are measured: x (b, d) in float64 -> (b, q)."""
        if self.stationary is None:
            return near_coordinates(self.kernel, x)
        return self.stationary.coordinates(self.stationary._select(x))

    def nearest(self, x: Tensor, count: int) -> Tensor:
        """Numbers (b, count) of the points that inputs x (b, d) see; cost: b M d, or a tree's."""
        if self.search is None:
            return nearest_inducing(self.kernel, self.z, x, count, self.rule)
        return self.search(self.coordinates(x.double()).to(self.z), count)

    def conditionals(self, x: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """E[f(x) | u_near] = weights^T u_near, and the variance left: (b, h) and (b,), in float64.

        Raises:
            NotPositiveDefinite: the covariance of those seen has no factor.

        Cost: b h (d h + h^2 / 3) operations.
        """
        if self.stationary is None or self.places is None:
            asked = x.double().unsqueeze(1)
            system = local_system(self.kernel, self.z[near].double(), asked, self.jitter)
            return system.weights.squeeze(2), system.rest.squeeze(1)
        # measured from x, which is near: distances lose no digits
        asked = self.coordinates(x.double())
        gap = self.places[near].sub_(asked.unsqueeze(1))
        products = gap @ gap.mT
        to_input = products.diagonal(dim1=1, dim2=2).clone()
        far = to_input[:, 0] > FAR
        if torch.compiler.is_exporting():  # whose programs do not ask whether there are any
            seen = self.places[near]
            gap = torch.where(far[:, None, None], seen - seen[:, :1], gap)
            products = gap @ gap.mT
        elif bool(far.any()):  # from one of those that it sees
            seen = self.places[near[far]]
            gap = seen - seen[:, :1]
            products[far] = gap @ gap.mT
        squares = products.diagonal(dim1=1, dim2=2).unsqueeze(2)
        among = (squares + squares.mT).sub_(products, alpha=2.0)
        r2 = torch.cat([among, to_input.unsqueeze(2)], 2).clamp_min_(0.0)
        scale = self.stationary.outputscale
        values = self.stationary.of_squared_distance(r2) * scale
        inner, cross = values[:, :, :-1], values[:, :, -1:]
        inner.diagonal(dim1=1, dim2=2).add_(self.jitter)
        name = f"covariance of {near.shape[1]} inducing points"
        factor, _ = cholesky(inner, name=name, ladder=(0.0,), hint="a larger jitter")
        white = torch.linalg.solve_triangular(factor, cross, upper=False)
        weights = torch.linalg.solve_triangular(factor.mT, white, upper=True)
        return weights.squeeze(2), (scale - white.square().sum((1, 2))).clamp_min_(0.0)


def _plain(kernel: Kernel) -> Kernel:
    """A copy in float64 whose parameters are numbers, as they are now, and not made anew."""
    made = copy.deepcopy(kernel)
    for part in list(made.modules()):
        if not parametrize.is_parametrized(part):
            continue
        names = list(cast(nn.ModuleDict, part.parametrizations))
        values = {name: getattr(part, name).detach() for name in names}
        # torch's own removal takes the properties off a class that copies share
        del part.parametrizations
        part.__class__ = type(part).__bases__[0]
        for name, value in values.items():
            part.register_buffer(name, value.clone())
    return made.requires_grad_(False).double()
