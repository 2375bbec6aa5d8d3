"""Terms and closed-form gradient of the log density of Gaussian targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from gpx.inference.kernel_gradient import KernelGradient
from gpx.linalg import with_gradient


class LogDensityTerms(NamedTuple):
    """Terms of log N(r; 0, C) for residuals r (n,), in nats.

    Attributes:
        fit: -r^T C^{-1} r / 2.
        complexity: -log det C / 2.
        constant: -n log(2 pi) / 2.
    """

    fit: Tensor
    complexity: Tensor
    constant: Tensor

    def total(self) -> Tensor:
        """The log density."""
        return self.fit + self.complexity + self.constant


class LogDensityGradient(NamedTuple):
    """Gradient of a log density, or of a bound on it.

    Attributes:
        residual (n,): with respect to the residuals y - m(x).
        noise () or (n,): with respect to the noise variance, or to those of the rows.
        kernel: with respect to the kernel's parameters, and to inputs that require a gradient.
        again: residuals, noise and ``kernel.inputs()`` -> the log density once more, in operations
            of torch, for second derivatives; None: these raise.
    """

    residual: Tensor
    noise: Tensor
    kernel: KernelGradient
    again: Callable[..., Tensor] | None = None

    def attached(self, value: Tensor, residual: Tensor, noise: Tensor) -> Tensor:
        """``value`` () with this gradient in ``residual`` (n,), ``noise`` and the kernel."""
        return with_gradient(
            value,
            [residual, noise, *self.kernel.inputs()],
            [
                self.residual.to(residual.dtype),
                self.noise.to(noise.dtype),
                *self.kernel.gradients(),
            ],
            self.again,
        )
