"""Names of families of stationary kernels, for options that take a family."""

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
"""Named families; any other subclass of ``Stationary`` is given as a class."""


def resolve_family(family: str | type[Stationary], *others: str) -> type[Stationary]:
    """The kernel class for an option's value.

    Args:
        family: a name in ``FAMILIES``, or a subclass of ``Stationary`` that takes ``ard_num_dims``.
        others: further allowed values of the option, for the message.

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
