"""Objects that record their constructor's arguments, for the config in a run folder."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from gpx.shown_values import ShowsValues

PLAIN = (bool, int, float, str, type(None))
"""Values that a config can hold."""


class Unrecorded:
    """Placeholder of an argument that no config can hold; its repr names the argument's class."""

    def __init__(self, value: object) -> None:
        self.kind = type(value).__name__

    def __repr__(self) -> str:
        return f"a {self.kind}"


class Recorded:
    """An object that records the arguments of its constructor, by a wrapper around ``__init__``.

    Numbers, strings, tensors, modules, and lists and mappings of them are recorded; anything else
    (functions, iterators) is replaced by ``Unrecorded``, so that modules stay picklable.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]

    def _recorded_class(self) -> Any:
        """The class whose constructor was called."""
        return type(self)

    def construction(self) -> dict[str, Any] | None:
        """Every argument of the constructor by name, with defaults; None if unknown.

        It is unknown if the constructor takes any number of positional arguments, or was replaced
        after its class was defined.
        """
        kind = self._recorded_class()
        if kind.__init__ in (nn.Module.__init__, object.__init__):
            return {}
        signature = inspect.signature(kind.__init__)
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            return None
        name, args, kwargs = self.__dict__.get("_construction", ("", (), {}))
        if name != kind.__init__.__qualname__:
            return {} if len(signature.parameters) == 1 else None
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *options = signature.parameters.values()
        recorded: dict[str, Any] = {}
        for option in options:
            value = bound.arguments[option.name]
            recorded |= value if option.kind is option.VAR_KEYWORD else {option.name: value}
        return recorded


class Constructed(Recorded, ShowsValues):
    """A module that records the arguments of its constructor."""

    def _recorded_class(self) -> Any:
        return type_before_parametrizations(self)


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def recording(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_construction" not in self.__dict__:  # the outermost constructor comes first
            options = {name: _record(value) for name, value in kwargs.items()}
            recorded = (init.__qualname__, tuple(_record(value) for value in args), options)
            self.__dict__["_construction"] = recorded
        init(self, *args, **kwargs)

    return recording


def _record(value: Any) -> Any:
    """A copy that does not share lists and mappings with the caller; see ``Constructed``."""
    if isinstance(value, (Tensor, nn.Module)):
        return value
    if callable(getattr(value, "tolist", None)):  # NumPy values; np.float64 is a float as well
        return value.tolist()
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Mapping):
        return {name: _record(entry) for name, entry in value.items()}
    return [_record(entry) for entry in value] if isinstance(value, Sequence) else Unrecorded(value)
