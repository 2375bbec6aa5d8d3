"""Inducing features: values of f at points, or other linear functionals of f."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpx.data_sized import DataSized
from gpx.errors import ConfigError
from gpx.inducing.base import Selector
from gpx.kernels.base import Kernel
from gpx.warned_line import users_line


class InducingFeatures(DataSized, ABC):
    """M linear functionals u of f; row m of z (M, q) defines u_m.

    A subclass defines ``choose``, ``cross`` and ``gram``, and works with every sparse regression:
    bounds hold for any choice, since the covariance of (f(x), u) is positive semi-definite, and
    depend only on the span of the functionals.

    Attributes:
        trainable: whether z is continuous and can be optimised.
        sampled: whether u are values of a function at z, as pathwise sampling needs.
        selected: whether ``choose`` asks the selector that it is given.
    """

    trainable = False
    sampled = False
    selected = True

    def require(self, kernel: Kernel) -> None:
        """Raise ConfigError unless the features are available for this kernel."""

    def width(self, kernel: Kernel, num_inputs: int) -> int:
        """q, columns of z, for ``num_inputs`` inputs. Default: as many."""
        return num_inputs

    def require_sampled(self) -> None:
        """Raise ConfigError unless sampled functions can be conditioned on these variables."""
        if not self.sampled:
            raise ConfigError(
                "sampled functions need inducing points, and this posterior has inducing variables "
                f"of another kind ({type(self).__name__})"
            )

    def path_kernel(self, kernel: Kernel) -> Kernel:
        """Kernel of the function g whose values at z are u, if ``sampled``. Default: that of f."""
        return kernel

    def path_inputs(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Inputs (n', q) at which g determines f at x (n, d). Default: x."""
        return x

    def path_values(self, kernel: Kernel, values: Tensor) -> Tensor:
        """f at x from values of g at ``path_inputs``: (..., n') -> (..., n). Default: the same."""
        return values

    @abstractmethod
    def choose(
        self,
        x: Tensor,
        kernel: Kernel,
        num: int,
        *,
        selector: Selector,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """z (M, q) for training inputs x (n, d), M at most ``num``; no gradients.

        May set further buffers of the functionals from the inputs, never from the targets.
        """

    @abstractmethod
    def cross(self, kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
        """cov(f(x), u) (n, M), differentiable in the kernel's parameters and, if trainable, z."""

    @abstractmethod
    def gram(self, kernel: Kernel, z: Tensor) -> Tensor:
        """cov(u, u) (M, M), differentiable likewise."""

    def cross_rows(self, kernel: Kernel, z: Tensor, x: Tensor) -> Tensor:
        """cov(u, f(x)) (M, n): the transpose of ``cross``, contiguous where that is free."""
        return self.cross(kernel, x, z).mT

    def gram_diagonal(self, kernel: Kernel, z: Tensor) -> Tensor:
        """The diagonal of ``gram`` (M,)."""
        return self.gram(kernel, z).diagonal()


class Points(InducingFeatures):
    """u_m = f(z_m): inducing points."""

    trainable = True
    sampled = True

    def choose(
        self,
        x: Tensor,
        kernel: Kernel,
        num: int,
        *,
        selector: Selector,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """As the selector says."""
        return selector(x, kernel, num, generator=generator)

    def cross(self, kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
        """k(x, z)."""
        return kernel.evaluate(x, z)

    def cross_rows(self, kernel: Kernel, z: Tensor, x: Tensor) -> Tensor:
        """k(z, x)."""
        return kernel.evaluate(z, x)

    def gram(self, kernel: Kernel, z: Tensor) -> Tensor:
        """k(z, z)."""
        return kernel.evaluate(z, z)

    def gram_diagonal(self, kernel: Kernel, z: Tensor) -> Tensor:
        """k(z_m, z_m)."""
        return kernel.diagonal(z)


POINTS = Points()
"""The usual choice; it has no state."""


def features_of(features: InducingFeatures | None, selector: Selector | None) -> InducingFeatures:
    """The features of a model; None stands for ``POINTS``.

    Warns of a selector that was given and has no effect.
    """
    if features is None:
        return POINTS
    if selector is not None and not features.selected:
        warnings.warn(
            f"selector={type(selector).__name__}() has no effect: it chooses points, and "
            f"{type(features).__name__} has none",
            stacklevel=users_line(),
        )
    return features
