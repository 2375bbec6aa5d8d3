"""What the inducing variables are: values of f at points, or other linear functionals of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpx.data_sized import DataSized
from gpx.errors import ConfigError
from gpx.inducing.base import Selector
from gpx.kernels.base import Kernel


class InducingFeatures(DataSized, ABC):
    """M linear functionals u of f; row m of z (M, q) says which one u_m is.

    A subclass writes three methods and every sparse regression runs with it: bounds hold for any
    choice, since the covariance of (f(x), u) is positive semi-definite, and they depend on the span
    of the functionals alone.

    Attributes:
        trainable: whether z is a point of a continuous set, to be optimised.
        sampled: whether u of a function is its values at z, which pathwise sampling needs.
    """

    trainable = False
    sampled = False

    def require(self, kernel: Kernel) -> None:
        """Raise ConfigError unless the closed forms are known for this kernel."""

    def width(self, kernel: Kernel, num_inputs: int) -> int:
        """q, columns of z, where there are ``num_inputs``. Default: as many."""
        return num_inputs

    def require_sampled(self) -> None:
        """Raise ConfigError unless sampled functions can be conditioned on these variables."""
        if not self.sampled:
            raise ConfigError(
                "sampled functions need inducing points, and this posterior has inducing variables "
                f"of another kind ({type(self).__name__})"
            )

    def path_kernel(self, kernel: Kernel) -> Kernel:
        """Covariance of the function whose values at z are u, where ``sampled``. Default: f's."""
        return kernel

    def path_inputs(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Where that function must be known for f at x (n, d): (n', q). Default: x."""
        return x

    def path_values(self, kernel: Kernel, values: Tensor) -> Tensor:
        """f at x from its values there: (..., n') -> (..., n). Default: they are those of f."""
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

        May fix what else the functionals need (buffers) from the inputs; never from the targets.
        """

    @abstractmethod
    def cross(self, kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
        """cov(f(x), u) (n, M), differentiable in the kernel's parameters and, if trainable, z."""

    @abstractmethod
    def gram(self, kernel: Kernel, z: Tensor) -> Tensor:
        """cov(u, u) (M, M); likewise."""

    def cross_rows(self, kernel: Kernel, z: Tensor, x: Tensor) -> Tensor:
        """cov(u, f(x)) (M, n): the transpose of ``cross``, laid out by rows where that is free."""
        return self.cross(kernel, x, z).mT

    def gram_diagonal(self, kernel: Kernel, z: Tensor) -> Tensor:
        """Its diagonal (M,)."""
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
