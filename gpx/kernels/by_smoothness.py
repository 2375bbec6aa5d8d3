"""Metaclass of a kernel family whose base class, called with ``nu``, makes the right subclass."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from numbers import Real
from typing import Any

from gpx.errors import ConfigError


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
