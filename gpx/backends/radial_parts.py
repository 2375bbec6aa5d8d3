"""A kernel matrix as a sum of functions of distances, the input of compiled backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

RadialProfile = Literal["rbf", "matern12", "matern32", "matern52", "rational_quadratic"]


@dataclass(frozen=True)
class RadialPart:
    """``scale * phi(|z1_i - z2_j|^2)`` for all i and j.

    Attributes:
        profile: phi; "matern32" is ``(1 + a) exp(-a)`` with ``a = sqrt(3 r2)``, and so on: the
            kernels of these names at lengthscale and outputscale one.
        z1 (n1, q), z2 (n2, q): centred, scaled coordinates; ``z1 is z2`` for a square matrix, whose
            diagonal is exact.
        scale (): the outputscale.
        shape (): alpha of the rational quadratic profile; None for the others.
    """

    profile: RadialProfile
    z1: Tensor
    z2: Tensor
    scale: Tensor
    shape: Tensor | None = None

    @property
    def square(self) -> bool:
        """Whether rows and columns are the same points."""
        return self.z1 is self.z2

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """z1, z2, scale and, if there is one, the shape."""
        shape = () if self.shape is None else (self.shape,)
        return (self.z1, self.z2, self.scale, *shape)

    def transposed(self) -> RadialPart:
        """The transposed matrix."""
        return RadialPart(self.profile, self.z2, self.z1, self.scale, self.shape)
