"""Change points: different kernels before and after locations along one input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, ShapeError, class_name
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, Moved, OfFeature, OfProduct, OfSum
from gpx.kernels.parameters import per_dimension


class ChangePoints(Kernel):
    """k(x, x') = sum_i w_i(x) w_i(x') k_i(x, x'): the function is sum_i w_i(x) f_i(x).

    With sigmoids s_j of ``steepness_j (x_axis - location_j)`` the weights of p kernels are
    w_1 = 1 - s_1, w_i = s_{i-1} (1 - s_i) and w_p = s_{p-1}: far from all change points one weight
    is one and the others are zero. It is a covariance function for any locations.

    Args:
        kernels: k_1 to k_p in the order of the input, at least two; each selects its own columns.
        locations: p - 1 increasing initial values, in the unit of the (standardised) input,
            learned; None: equally spaced between -1 and 1, from where ``init=subset`` searches the
            start in the data.
        steepness: initial value(s), one for all or one for each, per unit of the input, learned;
            the width of a change is about 4 / steepness.
        axis: column of x along which the function changes.

    Raises:
        ConfigError: fewer than two kernels, another number of locations than changes, locations
            that do not increase, a negative axis.
        ShapeError: when evaluated at inputs without that column.

    Cost: that of the p kernels, and p products a pair.
    Source: Saatci, Turner and Rasmussen, "Gaussian process change point models", 2010; Lloyd et
    al., "Automatic construction and natural-language description of nonparametric regression
    models", 2014, section 2 (two kernels).
    """

    steepness: Tensor
    searched: bool = False
    """Whether no locations were given, so that a run searches those to start from."""

    def __init__(
        self,
        kernels: Iterable[Kernel],
        locations: Sequence[float] | None = None,
        steepness: float | Sequence[float] = 5.0,
        axis: int = 0,
    ) -> None:
        super().__init__()
        parts = list(kernels)
        for part in parts:
            if not isinstance(part, Kernel):
                raise ConfigError(f"ChangePoints changes between kernels, got a {class_name(part)}")
        count = len(parts) - 1
        if count < 1:
            raise ConfigError(f"ChangePoints changes between kernels, got {len(parts)}: give two")
        if axis < 0:
            raise ConfigError(f"axis={axis}: columns of the inputs are numbered from 0 on")
        if locations is None:
            places = torch.linspace(-1.0, 1.0, count + 2, dtype=torch.float64)[1:-1]
        else:
            places = torch.as_tensor(locations, dtype=torch.float64).reshape(-1)
        if len(places) != count:
            raise ConfigError(
                f"locations has {len(places)} places and {len(parts)} kernels have {count} changes "
                "between them: give one for each"
            )
        if not (places.isfinite().all() and (places.diff() > 0.0).all()):
            raise ConfigError(f"locations is {places.tolist()}: its places must increase")
        self.searched = locations is None
        self.kernels = nn.ModuleList(parts)
        self.axis = int(axis)
        self.locations = nn.Parameter(places.to(torch.get_default_dtype()))
        positive_parameter(self, "steepness", per_dimension(steepness, count, "changes"))

    @property
    def parts(self) -> list[Kernel]:
        """k_1 to k_p."""
        return [cast(Kernel, part) for part in self.kernels]

    def weights(self, x: Tensor) -> Tensor:
        """w_1 to w_p at rows of x, (n, d) -> (p, n)."""
        if x.shape[1] <= self.axis:
            raise ShapeError(
                f"axis={self.axis} asks for column {self.axis}, but the inputs have only "
                f"{x.shape[1]} columns, numbered from 0"
            )
        along = self.steepness.unsqueeze(1) * (x[:, self.axis] - self.locations.unsqueeze(1))
        whole = along.new_ones(1, len(x))
        return torch.cat([whole, along.sigmoid()]) * torch.cat([(-along).sigmoid(), whole])

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        first = self.weights(x1)
        second = first if x2 is x1 else self.weights(x2)
        return self._weighted(
            lambda part, i: first[i].unsqueeze(1) * part.evaluate(x1, x2) * second[i]
        )

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``."""
        squares = self.weights(x).square()
        return self._weighted(lambda part, i: squares[i] * part.diagonal(x))

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, at the cost of the parts'."""
        both = self.weights(x1) * self.weights(x2)
        return self._weighted(lambda part, i: both[i] * part.pairs(x1, x2))

    def _weighted(self, term: Callable[[Kernel, int], Tensor]) -> Tensor:
        total = term(self.parts[0], 0)
        for place, part in enumerate(self.parts[1:], start=1):
            total = total + term(part, place)
        return total

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``, by the product rule of weights and parts."""
        left, right = Moved(self._weight_columns, a), Moved(self._weight_columns, b)
        found: list[KernelDerivatives] = []
        for place, part in enumerate(self.parts):
            weighing = OfFeature(left, right, place, self.axis)
            found.append(OfProduct(weighing, part.derivatives(a, b)))
        return OfSum(found)

    def _weight_columns(self, x: Tensor) -> Tensor:
        return self.weights(x).mT

    @property
    def local(self) -> bool:
        """Whether all parts are."""
        return all(part.local for part in self.parts)
