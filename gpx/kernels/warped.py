"""Kernels of transformed inputs, and the transformations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpx.backends import TileSource
from gpx.backends.entries import at_precision_of
from gpx.constraints import positive_parameter
from gpx.constructed import Constructed
from gpx.errors import ShapeError
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, OfWarp
from gpx.kernels.parameters import per_dimension
from gpx.tensor_checks import check_positive

EDGE_MARGIN = 1e-6
"""A ``Kumaraswamy`` warp uses its distribution function on [EDGE_MARGIN, 1 - EDGE_MARGIN] only,
since the slope may be infinite at the ends."""


class Warp(Constructed):
    """Base class of input maps (n, d) -> (n, q) in configs; in Python any module may be used."""


class Warped(Kernel):
    """k(x, x') = k_1(g(x), g(x')) for any map g; a covariance function whatever g is.

    Args:
        kernel: k_1, of the q outputs of g.
        warp: g, (n, d) -> (n, q); its parameters are learned with the kernel's.
        active_dims: columns of x that g uses; None for all.

    Source: Evans thesis, section 2.2 (table of kernels).
    """

    def __init__(
        self, kernel: Kernel, warp: Warp | nn.Module, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(active_dims)
        self.kernel, self.warp = kernel, warp

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        first = self._map(x1)
        return self.kernel.evaluate(first, first if x2 is x1 else self._map(x2))

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self.kernel.diagonal(self._map(x))

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, at the cost of k_1's."""
        return self.kernel.pairs(self.warped(x1), self.warped(x2))

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``, by the chain rule."""
        return self._in_columns(a, b, lambda a, b: OfWarp(self.kernel, self._map, a, b))

    def warped(self, x: Tensor) -> Tensor:
        """g of the active columns: (n, d) -> (n, q)."""
        return self._map(self._select(x))

    def _map(self, x: Tensor) -> Tensor:
        return at_precision_of(x, self.warp, lambda warp: warp(x))

    def tiles(self, x1: Tensor, x2: Tensor | None = None) -> TileSource:
        """As in ``Kernel``: k_1's tiles at the transformed inputs, computed once."""
        return self.kernel.tiles(self.warped(x1), None if x2 is None else self.warped(x2))

    @property
    def local(self) -> bool:
        """As k_1."""
        return self.kernel.local

    @property
    def has_formula(self) -> bool:
        """Whether k_1 has one."""
        return self.kernel.has_formula

    def formula(
        self, squared_distance: Callable[[Tensor, Tensor], Any], x1: Tensor, x2: Tensor
    ) -> Any:
        """The formula of k_1 at the transformed inputs; see ``Kernel.formula``."""
        return self.kernel.formula(squared_distance, self.warped(x1), self.warped(x2))


class LinearWarp(Warp):
    """g(x) = R^T x with R lower triangular: distances under the dense metric R R^T.

    An isotropic kernel of it is a kernel with r^2 = (x - x')^T Lambda^{-1} (x - x'), Lambda^{-1} =
    R R^T any positive definite matrix; fix the lengthscale of the kernel at one.

    Args:
        num_inputs: d.
    """

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.eye(num_inputs))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return x @ self.root.tril()


class Kumaraswamy(Warp):
    """Stretches every input where the function varies fast and compresses it elsewhere.

    g(x) = -reach + 2 reach F(u), u = (x + reach) / (2 reach), with Kumaraswamy's distribution
    function F(u) = 1 - (1 - u^a)^b, which needs no special functions and is close to that of a beta
    distribution. a > 1 compresses the lower end and a < 1 stretches it, b > 1 and b < 1 likewise
    the upper end. g(x) = x for a = b = 1, and beyond ``reach`` always. It is continuous and
    strictly increasing. A warp of inputs adds no Jacobian to the density of targets.

    Args:
        num_inputs: d.
        a, b: initial values, one for all inputs or one for each; they are learned for each.
        reach: largest |x| that is warped, in the unit of x (standard deviations as a rule).

    Raises:
        ConfigError: values that are not positive, or not one per input.
        ShapeError: when evaluated at inputs with another number of columns.

    Source: Snoek et al., "Input warping for Bayesian optimization of non-stationary functions",
    2014 (with beta distributions).
    """

    a: Tensor
    b: Tensor

    def __init__(
        self,
        num_inputs: int,
        a: float | Sequence[float] = 1.0,
        b: float | Sequence[float] = 1.0,
        reach: float = 3.0,
    ) -> None:
        super().__init__()
        check_positive(reach=reach)
        self.reach = float(reach)
        positive_parameter(self, "a", per_dimension(a, num_inputs, "num_inputs"))
        positive_parameter(self, "b", per_dimension(b, num_inputs, "num_inputs"))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d). Cost: a few exponentials and logarithms per number."""
        if x.shape[1] != len(self.a):
            raise ShapeError(
                f"the warp is of {len(self.a)} inputs, but the inputs have {x.shape[1]} (active) "
                f"columns; set num_inputs={x.shape[1]}"
            )
        inside = x.abs() < self.reach
        # outside, any value with a finite derivative, which is discarded
        centred = torch.where(inside, x, 0.0) / (2.0 * self.reach)
        below, above = (
            EDGE_MARGIN + (1.0 - 2.0 * EDGE_MARGIN) * (0.5 + c) for c in (centred, -centred)
        )
        low = self._distribution(x.new_full((1, 1), EDGE_MARGIN).log())
        high = self._distribution(x.new_full((1, 1), -EDGE_MARGIN).log1p())
        # u by its distance from the nearer end: 1 - EDGE_MARGIN has few digits left in float32
        log_u = torch.where(centred < 0.0, below.log(), (-above).log1p())
        share = (self._distribution(log_u) - low) / (high - low)
        return torch.where(inside, self.reach * (2.0 * share - 1.0), x)

    def _distribution(self, log_u: Tensor) -> Tensor:
        """F at the exponentials of numbers (n, d) or (n, 1) -> (n, d).

        log(1 - u^a) has two forms, since u^a may round to one, and u^a may be below the rounding
        of one; each is kept where it has a finite derivative.
        """
        power = self.a * log_u
        near_one = torch.log(-torch.expm1(power.clamp(min=-math.log(2.0))))
        small = torch.log1p(-torch.exp(power.clamp(max=-math.log(2.0))))
        return -torch.expm1(self.b * torch.where(power > -math.log(2.0), near_one, small))
