"""Sums, products and multiples of kernels."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from gpx.backends import RadialPart, RadialProfile, TileSource
from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.kernels.constant import Constant
from gpx.kernels.derivatives import KernelDerivatives, OfProduct, OfSum, Scaled
from gpx.kernels.tiles import ProductTiles, ScaledTiles, SumTiles


class _Combination(Kernel):
    tile_source: ClassVar[type[SumTiles | ProductTiles]]

    def __init__(self, kernels: Iterable[Kernel]) -> None:
        super().__init__()
        flat: list[Kernel] = []
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise ConfigError(
                    f"{self.name} combines kernels, got a {class_name(kernel)}; "
                    "pass a list of kernels"
                )
            # (a + b) + c is one sum of three; Sum and Product both derive from here
            if isinstance(kernel, _Combination) and type(kernel) is type(self):
                flat += kernel.parts
            else:
                flat.append(kernel)
        if not flat:
            raise ConfigError(f"{self.name} needs at least one kernel, got none")
        self.kernels = nn.ModuleList(flat)

    @property
    def parts(self) -> list[Kernel]:
        """The kernels that are combined, in order."""
        return [cast(Kernel, part) for part in self.kernels]

    @abstractmethod
    def _combine(self, values: list[Any]) -> Any:
        """Elementwise sum or product of tensors of one shape, or of lazy ones."""

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """All parts combined elementwise; each part selects its own active columns."""
        return self._combine([k.evaluate(x1, x2) for k in self.parts])

    def variance(self, x: Tensor) -> Tensor:
        """All parts' variances combined."""
        return self._combine([k.diagonal(x) for k in self.parts])

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """All parts' pairs combined."""
        return self._combine([k.pairs(x1, x2) for k in self.parts])

    def tiles(self, x1: Tensor, x2: Tensor | None = None) -> TileSource:
        """As in ``Kernel``: the parts' tiles combined."""
        return type(self).tile_source([k.tiles(x1, x2) for k in self.parts])

    @property
    def has_formula(self) -> bool:
        """Whether all parts have one."""
        return all(k.has_formula for k in self.parts)

    def formula(
        self, squared_distance: Callable[[Tensor, Tensor], Any], x1: Tensor, x2: Tensor
    ) -> Any:
        """The parts' formulas combined; see ``Kernel.formula``."""
        return self._combine([k.formula(squared_distance, x1, x2) for k in self.parts])


class Sum(_Combination):
    """k = k_1 + k_2 + ...: independent functions added.

    Args:
        kernels: at least one; sums among them are flattened.
    """

    tile_source = SumTiles

    def _combine(self, values: list[Any]) -> Any:
        return reduce(operator.add, values)

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``: the sums of the parts'."""
        return OfSum([k.derivatives(a, b) for k in self.parts])

    @property
    def radial_profiles(self) -> tuple[RadialProfile, ...]:
        """Those of all parts, where each has one."""
        found = [k.radial_profiles for k in self.parts]
        return tuple(p for profiles in found for p in profiles) if all(found) else ()

    def radial_parts(self, x1: Tensor, x2: Tensor | None = None) -> list[RadialPart]:
        """Those of all parts; see ``Kernel.radial_parts``."""
        return [found for k in self.parts for found in k.radial_parts(x1, x2)]

    def summands(self) -> list[tuple[Kernel, Tensor | float]]:
        """Those of all parts."""
        return [found for part in self.parts for found in part.summands()]

    @property
    def local(self) -> bool:
        """Whether all parts are."""
        return all(part.local for part in self.parts)


class Product(_Combination):
    """k = k_1 k_2 ..., elementwise.

    Args:
        kernels: at least one; products among them are flattened.
    """

    multiplies: ClassVar[bool] = True
    """Whether correlations of its parts multiply, for priors by the number of inputs."""

    tile_source = ProductTiles

    def _combine(self, values: list[Any]) -> Any:
        product = reduce(operator.mul, values)
        if isinstance(product, Tensor) and product.dtype == torch.float32:
            # products of small factors may be subnormal, which slows down all further operations
            product = torch.hardshrink(product, torch.finfo(torch.float32).tiny)
        return product

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``, by the product rule."""
        return reduce(OfProduct, [k.derivatives(a, b) for k in self.parts])

    @property
    def local(self) -> bool:
        """Whether any part is."""
        return any(part.local for part in self.parts)


class Scale(Kernel):
    """k = outputscale * k_1.

    Args:
        kernel: k_1.
        scale: initial multiple, positive and learnable.
    """

    scale: Tensor

    def __init__(self, kernel: Kernel, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise ConfigError(f"Scale multiplies a kernel, got a {class_name(kernel)}")
        self.kernel = kernel
        positive_parameter(self, "scale", float(scale))

    @property
    def outputscale(self) -> Tensor:
        """Prior variance of the scaled kernel, where the part has an outputscale."""
        return self.scale * cast(Tensor, self.kernel.outputscale)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The part's matrix times the scale."""
        return self.scale * self.kernel.evaluate(x1, x2)

    def variance(self, x: Tensor) -> Tensor:
        """The part's variance times the scale."""
        return self.scale * self.kernel.diagonal(x)

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The part's pairs times the scale."""
        return self.scale * self.kernel.pairs(x1, x2)

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``: the part's times the scale."""
        return Scaled(self.kernel.derivatives(a, b), self.scale)

    def tiles(self, x1: Tensor, x2: Tensor | None = None) -> TileSource:
        """As in ``Kernel``: the part's tiles and one more scale."""
        return ScaledTiles(self.kernel.tiles(x1, x2), self.scale)

    @property
    def has_formula(self) -> bool:
        """Whether the part has one."""
        return self.kernel.has_formula

    def formula(
        self, squared_distance: Callable[[Tensor, Tensor], Any], x1: Tensor, x2: Tensor
    ) -> Any:
        """The part's formula times the scale; see ``Kernel.formula``."""
        return self.kernel.formula(squared_distance, x1, x2) * self.scale

    @property
    def radial_profiles(self) -> tuple[RadialProfile, ...]:
        """The part's."""
        return self.kernel.radial_profiles

    def radial_parts(self, x1: Tensor, x2: Tensor | None = None) -> list[RadialPart]:
        """The part's, multiplied by the scale; see ``Kernel.radial_parts``."""
        parts = self.kernel.radial_parts(x1, x2)
        return [replace(part, scale=part.scale * self.scale) for part in parts]

    def summands(self) -> list[tuple[Kernel, Tensor | float]]:
        """The part's, multiplied by the scale."""
        return [(kernel, scale * self.scale) for kernel, scale in self.kernel.summands()]

    @property
    def local(self) -> bool:
        """As the part."""
        return self.kernel.local

    def num_spectral_normals(self, num_inputs: int) -> int:
        """As the part says."""
        return self.kernel.num_spectral_normals(num_inputs)

    @property
    def spectral_normals(self) -> int:
        """As the part says."""
        return self.kernel.spectral_normals

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """As the part says: a multiple has the same frequencies."""
        return self.kernel.spectral_frequencies(normals)

    def spectral_density(self, omega: Tensor) -> Tensor:
        """The part's density times the scale."""
        return self.scale * self.kernel.spectral_density(omega)

    def log_spectral_density(self, omega: Tensor) -> Tensor:
        """The part's log density plus the log of the scale."""
        return self.scale.log() + self.kernel.log_spectral_density(omega)


# results of + and * of kernels and numbers
Kernel.sum_of, Kernel.product_of = Sum, Product
Kernel.multiple_of, Kernel.constant_of = Scale, Constant
