"""A family of kernels whose name, called with a smoothness, gives the class of that smoothness."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from numbers import Real
from typing import Any

from gpx.errors import ConfigError


class BySmoothness(ABCMeta):
    """Class of a family's classes: calling the abstract one with ``nu`` makes one of another.

    The others are called as any class is, so that what is pickled, recorded in a run or compared by
    ``isinstance`` is the class that was made.
    """

    closed_forms: dict[float, type]
    """Of the abstract class alone: the class of each smoothness that has one of its own."""
    general: type
    """Of the abstract class alone: the class of every other, which takes ``nu``."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """An instance; of the abstract class, of the class of ``nu``.

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
        """Of the constructor, which ``__call__`` hides from ``inspect.signature`` otherwise."""
        made: Any = vars(cls).get("general", cls)
        found = inspect.signature(made.__init__)
        return found.replace(parameters=list(found.parameters.values())[1:])
