"""Stationary kernels: written once, as a function of the scaled squared distance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpx.backends import RadialPart, RadialProfile, TileSource
from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, NoSpectrum
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, OfCoordinates, OfDistance
from gpx.kernels.distances import centre, is_trained
from gpx.kernels.fused import Profile, squared_distance, stationary_covariance
from gpx.kernels.parameters import add_outputscale, dimensions, per_dimension
from gpx.kernels.profile_slopes import one_at_zero
from gpx.kernels.tiles import StationaryTiles

PROFILE_ATTRIBUTES = ("in_place", "radial_profile", "falls", "slopes")
"""Attributes that describe a subclass's profile, reset where a subclass replaces it."""
SPECTRUM_ATTRIBUTES = ("denominator_normals", "active_frequencies", "log_active_density")
"""Attributes that describe its Fourier transform, likewise."""


class Stationary(Kernel):
    """k(x, x') = outputscale * phi(r2) with r2 = sum_d (x_d - x'_d)^2 / lengthscale_d^2.

    A subclass must define ``of_squared_distance``. It may add ``in_place``, the same function and
    its derivative computed in place, to run at the speed of the built-in kernels, and its spectrum:
    ``denominator_normals``, ``active_frequencies`` and ``log_active_density``. A subclass that
    replaces the profile of its parent does not inherit these; one that replaces ``coordinates``
    does not inherit the spectrum.

    Args:
        ard_num_dims: number of lengthscales, one per (active) input; None: as many as
            ``lengthscale`` has entries.
        lengthscale: initial value(s), in the unit of x.
        outputscale: initial signal variance, in squared units of y; None fixes it to one.
        active_dims: columns of x that the kernel uses; None for all.

    Raises:
        ConfigError: lengthscales and ``ard_num_dims`` or ``active_dims`` disagree in number.

    Accuracy: distances come from a matrix product of centred inputs, with an absolute error in r2
    of a few machine epsilons times the squared scaled radius of the data. Entries are
    differentiable twice, but for profiles with a kink at zero distance (Matern 1/2), and
    ``MaternNu`` and ``Wendland``.
    """

    in_place: ClassVar[type[Profile] | None] = None
    falls: ClassVar[bool] = False
    """Whether k falls strictly with the distance, so that the nearest rows correlate most."""
    radial_profile: ClassVar[RadialProfile | None] = None
    """The profile's name in compiled backends, where they have it."""
    radial_shape: Tensor | None = None
    """The profile's shape parameter, 0-d, where it has one."""
    lengthscale: Tensor
    outputscale: Tensor
    _for_any_covariance = True

    def __init__(
        self,
        ard_num_dims: int | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.ard_num_dims = ard_num_dims = dimensions(ard_num_dims, lengthscale)
        if self.active_dims is not None and ard_num_dims not in (None, len(self.active_dims)):
            raise ConfigError(
                f"ard_num_dims is {ard_num_dims} but active_dims lists {len(self.active_dims)} "
                "columns; give one lengthscale per active column, or ard_num_dims=None"
            )
        positive_parameter(self, "lengthscale", per_dimension(lengthscale, ard_num_dims))
        add_outputscale(self, outputscale)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parent: Any = super(cls, cls)
        if getattr(parent.of_squared_distance, "__isabstractmethod__", False):
            return
        # attributes of the parent's profile do not describe a new one
        written = vars(cls)
        reshaped = "covariance" in written or "of_squared_distance" in written
        lost: tuple[str, ...] = PROFILE_ATTRIBUTES if reshaped else ()
        lost += SPECTRUM_ATTRIBUTES if reshaped or "coordinates" in written else ()
        for name in lost:
            if name not in written:
                setattr(cls, name, vars(Stationary)[name])

    @property
    def local(self) -> bool:
        """As in ``Kernel``: a profile that falls with distance."""
        return True

    @abstractmethod
    def of_squared_distance(self, r2: Any) -> Any:
        """k / outputscale as a function of the scaled squared distance, elementwise.

        Use arithmetic, ``r2.sqrt()`` and ``gpx.kernels.exponential.exponential`` only, so that it
        works on torch tensors and on KeOps lazy tensors alike. A square root needs no care at zero.
        """

    def slopes(self, r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The profile phi and its first and second derivative by r2, elementwise.

        Differentiable in the profile's parameters. Where the second derivative is infinite at zero
        but vanishes there beside the first when it is multiplied by r2, it is given as 0.

        By default by autograd of ``of_squared_distance``, for profiles that are smooth functions of
        r2, not of its root.
        """
        keep = torch.is_grad_enabled()
        with torch.enable_grad():
            at = r2 if r2.requires_grad else r2.detach().requires_grad_()
            value = self.of_squared_distance(at)
            (first,) = torch.autograd.grad(value.sum(), at, create_graph=True)
            second = torch.zeros_like(first)
            if first.requires_grad:
                (second,) = torch.autograd.grad(first.sum(), at, create_graph=True)
        found = (value, first, second)
        return found if keep else tuple(part.detach() for part in found)  # type: ignore[return-value]

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``: from ``slopes``, where the covariance is that of the profile."""
        if type(self).covariance is not Stationary.covariance:
            return super().derivatives(a, b)
        if type(self).coordinates is not Stationary.coordinates:
            return self._in_columns(a, b, lambda a, b: OfCoordinates(self, a, b))

        def make(a: Tensor, b: Tensor) -> KernelDerivatives:
            self._check_columns(a.reshape(-1, a.shape[-1]))
            return OfDistance(self, a, b)

        return self._in_columns(a, b, make)

    def coordinates(self, x: Tensor) -> Tensor:
        """Coordinates in which the distance is measured: (n, d) -> (n, q); here x / lengthscale."""
        self._check_columns(x)
        return x / self.lengthscale

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``; exactly ``outputscale`` on the diagonal when ``x1 is x2``."""
        if self.in_place is None:
            c1, c2 = self._centred(x1, x2)
            return self.outputscale * self.of_squared_distance(squared_distance(c1, c2))
        if type(self).coordinates is Stationary.coordinates:
            self._check_columns(x1)
            z1, z2, lengthscale = x1, x2, self.lengthscale
        else:
            z1, lengthscale = self.coordinates(x1), None
            z2 = z1 if x1 is x2 else self.coordinates(x2)
        scale, guarded = self.outputscale, not is_trained(self)
        return stationary_covariance(
            z1, z2, scale, self.in_place, lengthscale, guarded=guarded, slopes=self.slopes
        )

    def _centred(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates about one point among them; the same object twice when ``x1 is x2``."""
        z1 = self.coordinates(x1)
        z2 = z1 if x1 is x2 else self.coordinates(x2)
        if not z2.shape[0]:
            return z1, z2
        # the distance does not depend on the centre, so it carries no gradient
        guarded = not is_trained(self)
        origin = centre(z1.detach(), z2.detach(), x1 is x2, guarded=guarded)
        c1 = z1 - origin
        return c1, c1 if x1 is x2 else z2 - origin

    def tiles(self, x1: Tensor, x2: Tensor | None = None) -> TileSource:
        """As in ``Kernel``; coordinates are computed once, and no tile allocates memory."""
        if self.in_place is None:
            return super().tiles(x1, x2)
        z1, z2 = self._centred(*self._select_both(x1, x2))
        return StationaryTiles(z1, z2, self.outputscale, self.in_place)

    @property
    def is_radial(self) -> bool:
        """Whether k depends on |(x - x') / lengthscale| only: nothing of this is overridden."""
        own = type(self)
        return (own.covariance, own.coordinates) == (Stationary.covariance, Stationary.coordinates)

    @property
    def radial_profiles(self) -> tuple[RadialProfile, ...]:
        """As in ``Kernel``: ``radial_profile``, if there is one."""
        return () if self.radial_profile is None else (self.radial_profile,)

    def radial_parts(self, x1: Tensor, x2: Tensor | None = None) -> list[RadialPart]:
        """As in ``Kernel``: one part."""
        if not self.radial_profiles:
            return super().radial_parts(x1, x2)
        z1, z2 = self._centred(*self._select_both(x1, x2))
        (profile,) = self.radial_profiles
        return [RadialPart(profile, z1, z2, self.outputscale, self.radial_shape)]

    @property
    def has_formula(self) -> bool:
        """Whether ``covariance`` is not overridden, so that ``of_squared_distance`` defines k."""
        return type(self).covariance is Stationary.covariance

    def formula(
        self, squared_distance: Callable[[Tensor, Tensor], Any], x1: Tensor, x2: Tensor
    ) -> Any:
        """``outputscale * of_squared_distance(r2)``; see ``Kernel.formula``."""
        z1, z2 = self.coordinates(self._select(x1)), self.coordinates(self._select(x2))
        return self.of_squared_distance(squared_distance(z1, z2)) * self.outputscale

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, from differences in O(n d); slopes at zero distance are zero."""
        if type(self).covariance is not Stationary.covariance:
            return super().pairs(x1, x2)
        z1, z2 = self.coordinates(self._select(x1)), self.coordinates(self._select(x2))
        apart = z1 - z2
        r2 = torch.einsum("nd,nd->n", apart, apart)  # four times as fast as a sum over few columns
        coincident = r2 == 0
        # a square root has an infinite derivative at zero: evaluate those rows without a graph
        safe = self.of_squared_distance(r2.masked_fill(coincident, 1.0))
        one = one_at_zero(r2, self.slopes) if r2.requires_grad else torch.ones_like(safe)
        return self.outputscale * torch.where(coincident, one, safe)

    def variance(self, x: Tensor) -> Tensor:
        """The outputscale at every row."""
        return self.outputscale.expand(x.shape[0])

    # --- spectrum --------------------------------------------------------------------------------

    @property
    def denominator_normals(self) -> int:
        """Number of standard normals per random frequency beside one for every input."""
        raise self._no_spectrum()

    def active_frequencies(self, normals: Tensor) -> Tensor:
        """``spectral_frequencies`` in the active columns."""
        raise self._no_spectrum()

    def log_active_density(self, omega: Tensor) -> Tensor:
        """``log_spectral_density`` in the active columns."""
        raise self._no_spectrum()

    def num_spectral_normals(self, num_inputs: int) -> int:
        """As in ``Kernel``: one for each input, and ``denominator_normals``."""
        return num_inputs + self._require_all_columns().denominator_normals

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self._require_all_columns().active_frequencies(normals)

    def log_spectral_density(self, omega: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self._require_all_columns().log_active_density(omega)

    def spectral_density(self, omega: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self.log_spectral_density(omega).exp()

    def _require_all_columns(self) -> Stationary:
        if self.active_dims is not None:
            raise NoSpectrum(
                f"spectral frequencies of {self.name} with active_dims would not match "
                "the columns of x; select the columns in the data instead"
            )
        return self


def safe_root(r2: Tensor) -> tuple[Tensor, Tensor]:
    """The root of squared distances, whose slope counts as 0 at 0, and where these are 0."""
    coincident = r2 == 0.0
    return r2.masked_fill(coincident, 1.0).sqrt().masked_fill(coincident, 0.0), coincident
