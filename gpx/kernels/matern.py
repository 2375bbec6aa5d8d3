"""Matern kernels of half-integer smoothness, in closed form."""

from __future__ import annotations

import inspect
import math
from abc import ABCMeta
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.derivatives import no_derivatives
from gpx.kernels.exponential import EXPONENT_FLOOR, exponential
from gpx.kernels.stationary import Stationary, safe_root


class BySmoothness(ABCMeta):
    """Metaclass: calling the family's abstract class with ``nu`` instantiates a subclass.

    Subclasses are called as usual. Instances are plain instances of the subclass, so that pickles,
    run folders and ``isinstance`` see that class.
    """

    closed_forms: dict[float, type]
    """Set on the abstract class only: subclasses of fixed smoothness, by ``nu``."""
    general: type
    """Set on the abstract class only: the subclass for any other smoothness, which takes ``nu``."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Instantiate the class; for the abstract class, the subclass for ``nu``.

        Raises:
            ConfigError: the abstract class was called without a number ``nu``.
        """
        if "general" not in vars(cls):
            return super().__call__(*args, **options)
        nu = options.pop("nu", None)
        if not isinstance(nu, Real):
            names = ", ".join(f"{v:g} ({kind.__name__})" for v, kind in cls.closed_forms.items())
            raise ConfigError(
                f"{cls.__name__} needs a smoothness, got nu={nu!r}: give nu={names}, or any "
                f"other up to 50 ({cls.general.__name__})"
            )
        closed = cls.closed_forms.get(float(nu))
        return closed(*args, **options) if closed else cls.general(*args, nu=nu, **options)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's signature, which ``__call__`` would hide."""
        made: Any = vars(cls).get("general", cls)
        found = inspect.signature(made.__init__)
        return found.replace(parameters=list(found.parameters.values())[1:])


SQRT3 = math.sqrt(3.0)
SQRT5 = math.sqrt(5.0)

_BOUNDS = (0.0, EXPONENT_FLOOR**2)
"""Range of the squared scaled distance: above it the exponential is zero to rounding."""


class _InPlace:
    bounds = _BOUNDS
    slope_per_value = None


class Matern(Stationary, metaclass=BySmoothness):
    """Base class of the Matern kernels; the spectrum is a Student-t with 2 nu degrees of freedom.

    ``Matern(nu=1.5)`` makes a ``Matern12``, ``Matern32`` or ``Matern52``, or a ``MaternNu`` for any
    other smoothness; further arguments are those of ``Stationary``.

    Source: Burt thesis, sections 1.2.1 and 1.2.2.
    """

    falls = True
    nu: float

    @property
    def denominator_normals(self) -> int:
        """2 nu, of the chi-square in the denominator of a frequency."""
        return round(2 * self.nu)

    def active_frequencies(self, normals: Tensor) -> Tensor:
        """w = g sqrt(2 nu / sum h^2) / lengthscale, with g the first d normals and h the others."""
        freedom = self.denominator_normals
        direction, rest = normals[:, :-freedom], normals[:, -freedom:]
        stretch = (freedom / rest.square().sum(1, keepdim=True)).sqrt()
        return direction * stretch / self.lengthscale

    def log_active_density(self, omega: Tensor) -> Tensor:
        """log density of the Student-t, in cycles."""
        d, nu = omega.shape[-1], self.nu
        constant = (
            0.5 * d * math.log(2.0 * math.pi / nu) + math.lgamma(nu + 0.5 * d) - math.lgamma(nu)
        )
        square = (omega * self.lengthscale).square().sum(-1)
        log_volume = self.lengthscale.expand(d).log().sum()
        tail = -(nu + 0.5 * d) * (square * (2.0 * math.pi**2 / nu)).log1p()
        return self.outputscale.log() + log_volume + constant + tail


class Matern12(Matern):
    """Exponential kernel: k = outputscale * exp(-r); continuous, nowhere differentiable samples.

    Its derivative with respect to an input is taken as zero at coincident points (a subgradient).
    """

    nu = 0.5
    radial_profile = "matern12"

    class in_place(_InPlace):
        """The profile and its slope, in place."""

        factor = 1.0

        @staticmethod
        def evaluate_(scaled: Tensor, work: Tensor, with_slope: bool) -> None:
            """exp(-r) and -exp(-r) / (2 r), zero at r = 0."""
            scaled.sqrt_().neg_()
            if not with_slope:
                scaled.exp_()
                return
            torch.mul(scaled, 2.0, out=work)
            scaled.exp_()
            coincident = work == 0.0  # of either sign
            torch.div(scaled, work, out=work)
            work.masked_fill_(coincident, 0.0)

    def of_squared_distance(self, r2: Any) -> Any:
        """exp(-r)."""
        return exponential(-(r2.sqrt()))

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raises ConfigError: the functions are not differentiable."""
        raise no_derivatives(self, "its functions are nowhere differentiable")


class Matern32(Matern):
    """k = outputscale * (1 + a) exp(-a), a = sqrt(3) r; once differentiable samples."""

    nu = 1.5
    radial_profile = "matern32"

    class in_place(_InPlace):
        """The profile and its slope, in place."""

        factor = 3.0

        @staticmethod
        def evaluate_(scaled: Tensor, work: Tensor, with_slope: bool) -> None:
            """(1 + a) exp(-a) and -3/2 exp(-a)."""
            minus_a = scaled.sqrt_().neg_()
            torch.exp(minus_a, out=work)
            torch.addcmul(work, minus_a, work, value=-1.0, out=scaled)
            if with_slope:
                work.mul_(-1.5)

    def of_squared_distance(self, r2: Any) -> Any:
        """(1 + a) exp(-a)."""
        a = r2.sqrt() * SQRT3
        return (a + 1.0) * exponential(-a)

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(1 + a) exp(-a), -3/2 exp(-a) and 9/4 exp(-a) / a."""
        root, coincident = safe_root(r2)
        a = root * SQRT3
        decay = exponential(-a)
        second = (2.25 * decay / (a + coincident.to(a))).masked_fill(coincident, 0.0)
        return (a + 1.0) * decay, -1.5 * decay, second


class Matern52(Matern):
    """k = outputscale * (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r; twice differentiable samples."""

    nu = 2.5
    radial_profile = "matern52"

    class in_place(_InPlace):
        """The profile and its slope, in place."""

        factor = 5.0

        @staticmethod
        def evaluate_(scaled: Tensor, work: Tensor, with_slope: bool) -> None:
            """(1 + a + a^2 / 3) exp(-a) and -5/6 (1 + a) exp(-a)."""
            minus_a = scaled.sqrt_().neg_()
            torch.exp(minus_a, out=work)
            inner = torch.addcmul(work, minus_a, work, value=-1.0)  # (1 + a) exp(-a)
            minus_a.square_()
            torch.addcmul(inner, minus_a, work, value=1.0 / 3.0, out=scaled)
            if with_slope:
                torch.mul(inner, -5.0 / 6.0, out=work)

    def of_squared_distance(self, r2: Any) -> Any:
        """(1 + a + a^2 / 3) exp(-a)."""
        a = r2.sqrt() * SQRT5
        return (a + r2 * (5.0 / 3.0) + 1.0) * exponential(-a)

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(1 + a + a^2 / 3) exp(-a), -5/6 (1 + a) exp(-a) and 25/12 exp(-a)."""
        a = safe_root(r2)[0] * SQRT5
        decay = exponential(-a)
        inner = (a + 1.0) * decay
        return inner + r2 * (5.0 / 3.0) * decay, (-5.0 / 6.0) * inner, (25.0 / 12.0) * decay
