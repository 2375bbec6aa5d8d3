"""Subclasses of kernels with a covariance of their own, which their parents do not describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel

DESCRIPTIONS = (
    ("pairs",),
    ("derivatives",),
    ("tiles",),
    ("has_formula", "formula"),
    ("radial_profiles", "radial_parts"),
    ("local",),
    ("summands",),
    ("num_spectral_normals", "spectral_normals", "spectral_frequencies"),
    ("draw_frequencies",),
    ("spectral_density",),
    ("log_spectral_density",),
)
"""What a class says about its ``covariance`` in other forms; those of one group go together."""


def drop_descriptions(cls: type, base: type) -> None:
    """Give a class the ``DESCRIPTIONS`` of ``base`` where its parent's are of another covariance.

    Args:
        cls: class that is being defined; what it writes itself stays.
        base: ``Kernel``, whose descriptions hold for any covariance.
    """
    order = cls.__mro__

    def place(name: str) -> int:
        return next(i for i, parent in enumerate(order) if name in vars(parent))

    written = place("covariance")
    for group in DESCRIPTIONS:
        places = {name: place(name) for name in group}
        if min(places.values()) <= written:
            continue
        for name, found in places.items():
            if _describes_its_own(order[found]):
                setattr(cls, name, vars(base)[name])


def _describes_its_own(owner: type) -> bool:
    """Whether methods of a class describe a covariance that it has, and that covariance only."""
    covariance: Any = getattr(owner, "covariance", None)
    if covariance is None or getattr(covariance, "__isabstractmethod__", False):
        return False
    return not vars(owner).get("_for_any_covariance", False)


def computes_as(kernel: object, *kinds: type[Kernel]) -> bool:
    """Whether a kernel is of one of these classes and computes what that class does.

    False for a subclass with a covariance, a profile or coordinates of its own, of which the
    structure of its parent (factors, multiples, warped inputs) says nothing.
    """
    own = type(kernel)
    defining = ("covariance", "of_squared_distance", "coordinates", "_combine")
    return any(
        issubclass(own, kind)
        and all(getattr(own, name, None) is getattr(kind, name, None) for name in defining)
        for kind in kinds
    )
