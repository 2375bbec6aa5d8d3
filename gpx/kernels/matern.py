"""Matern kernels of half-integer smoothness, in closed form."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from gpx.kernels.exponential import exponential
from gpx.kernels.stationary import Stationary

SQRT3 = math.sqrt(3.0)
SQRT5 = math.sqrt(5.0)


class Matern(Stationary):
    """What the Matern kernels share: spectrum of a Student-t with 2 nu degrees of freedom.

    Source: sgpr_cglb_diagnostics 2.2, 2.3.
    """

    nu: ClassVar[float]

    def num_spectral_normals(self, num_inputs: int) -> int:
        """d + 2 nu: d for the direction, 2 nu for the chi-square in the denominator."""
        return num_inputs + round(2 * self.nu)

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """w = g sqrt(2 nu / sum h^2) / lengthscale, with g the first d normals and h the others."""
        self._whole_input()
        freedom = round(2 * self.nu)
        direction, rest = normals[:, :-freedom], normals[:, -freedom:]
        stretch = (freedom / rest.square().sum(1, keepdim=True)).sqrt()
        return direction * stretch / self.lengthscale

    def spectral_density(self, omega: Tensor) -> Tensor:
        """Density of the Student-t, in cycles; see ``Kernel.spectral_density``."""
        self._whole_input()
        d, nu = omega.shape[-1], self.nu
        log_constant = (
            0.5 * d * math.log(2.0 * math.pi / nu) + math.lgamma(nu + 0.5 * d) - math.lgamma(nu)
        )
        square = (omega * self.lengthscale).square().sum(-1)
        volume = self.lengthscale.expand(d).prod()
        tail = -(nu + 0.5 * d) * (square * (2.0 * math.pi**2 / nu)).log1p()
        return self.outputscale * volume * (log_constant + tail).exp()


class Matern12(Matern):
    """Exponential kernel: k = outputscale * exp(-r); continuous, nowhere differentiable samples.

    Its derivative with respect to an input is taken as zero at coincident points (a subgradient).
    """

    nu = 0.5

    class in_place:
        """The profile and its slope, in place."""

        @staticmethod
        def value_(r2: Tensor, floor: float) -> Tensor:
            """exp(-r)."""
            return r2.sqrt_().neg_().clamp_(min=floor).exp_()

        @staticmethod
        def value_and_slope_(r2: Tensor, floor: float) -> tuple[Tensor, Tensor]:
            """exp(-r) and -exp(-r) / (2 r), zero at r = 0."""
            minus_r = r2.sqrt_().neg_().clamp_(min=floor)
            value = minus_r.exp()
            coincident = minus_r == 0
            return value, minus_r.reciprocal_().mul_(value).mul_(0.5).masked_fill_(coincident, 0.0)

    def of_squared_distance(self, r2: Any) -> Any:
        """exp(-r)."""
        return exponential(-(r2.sqrt()))


class Matern32(Matern):
    """k = outputscale * (1 + a) exp(-a), a = sqrt(3) r; once differentiable samples."""

    nu = 1.5

    class in_place:
        """The profile and its slope, in place."""

        @staticmethod
        def value_(r2: Tensor, floor: float) -> Tensor:
            """(1 + a) exp(-a)."""
            b = r2.sqrt_().mul_(-SQRT3).clamp_(min=floor)
            e = b.exp()
            return e.addcmul_(b, e, value=-1.0)

        @staticmethod
        def value_and_slope_(r2: Tensor, floor: float) -> tuple[Tensor, Tensor]:
            """(1 + a) exp(-a) and -3/2 exp(-a)."""
            b = r2.sqrt_().mul_(-SQRT3).clamp_(min=floor)
            e = b.exp()
            value = b.neg_().mul_(e).add_(e)
            return value, e.mul_(-1.5)

    def of_squared_distance(self, r2: Any) -> Any:
        """(1 + a) exp(-a)."""
        a = r2.sqrt() * SQRT3
        return (a + 1.0) * exponential(-a)


class Matern52(Matern):
    """k = outputscale * (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r; twice differentiable samples."""

    nu = 2.5

    class in_place:
        """The profile and its slope, in place."""

        @staticmethod
        def value_(r2: Tensor, floor: float) -> Tensor:
            """(1 + a + a^2 / 3) exp(-a)."""
            b = r2.sqrt_().mul_(-SQRT5).clamp_(min=floor)
            e = b.exp()
            # Horner in b = -a: 1 - b (1 - b / 3)
            return e.mul_(b.mul(1.0 / 3.0).sub_(1.0).mul_(b).add_(1.0))

        @staticmethod
        def value_and_slope_(r2: Tensor, floor: float) -> tuple[Tensor, Tensor]:
            """(1 + a + a^2 / 3) exp(-a) and -5/6 (1 + a) exp(-a)."""
            b = r2.sqrt_().mul_(-SQRT5).clamp_(min=floor)
            e = b.exp()
            inner = e.addcmul(b, e, value=-1.0)  # (1 + a) exp(-a)
            value = b.square_().mul_(e).mul_(1.0 / 3.0).add_(inner)
            return value, inner.mul_(-5.0 / 6.0)

    def of_squared_distance(self, r2: Any) -> Any:
        """(1 + a + a^2 / 3) exp(-a)."""
        a = r2.sqrt() * SQRT5
        return (a + r2 * (5.0 / 3.0) + 1.0) * exponential(-a)
