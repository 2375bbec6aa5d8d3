"""Families of stationary kernels, where an option asks for a family and not for a kernel."""

from __future__ import annotations

from gpx.errors import ConfigError
from gpx.kernels.matern import Matern12, Matern32, Matern52
from gpx.kernels.rbf import RBF
from gpx.kernels.stationary import Stationary

FAMILIES: dict[str, type[Stationary]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
}
"""Those with a name of their own; a subclass of ``Stationary`` stands for itself."""


def family_of(family: str | type[Stationary], *others: str) -> type[Stationary]:
    """The class of kernels that an option names, or is.

    Args:
        family: one of ``FAMILIES``, or a subclass of ``Stationary`` that takes ``ard_num_dims``.
        others: what else the option may be, for the message.

    Raises:
        ConfigError: neither.
    """
    if isinstance(family, type) and issubclass(family, Stationary):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(
            f"family={family}: expected one of {', '.join((*others, *FAMILIES))}, or a subclass of "
            "Stationary"
        )
    return FAMILIES[family]
