"""Modules that remember what they were constructed with, so that a run folder can say it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

PLAIN = (bool, int, float, str, type(None))
"""Values that a config holds as they are."""


class Unrecorded:
    """In the place of an argument that no config can hold; it shows as the class of that."""

    def __init__(self, value: object) -> None:
        self.kind = type(value).__name__

    def __repr__(self) -> str:
        return f"a {self.kind}"


class Constructed(nn.Module):
    """A module whose subclasses' constructors note their arguments, by wrapping ``__init__``.

    Numbers, texts, tensors, modules, and lists and mappings of them are kept; of anything else
    (functions, iterators) only that it was there, so that what could be pickled still can.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

    def construction(self) -> dict[str, Any] | None:
        """Every argument of the constructor by name, with defaults; None where it is not known.

        It is not where a constructor takes any number of positional arguments, or was replaced
        after its class was written.
        """
        kind: Any = type_before_parametrizations(self)
        if kind.__init__ is nn.Module.__init__:
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
        given: dict[str, Any] = {}
        for option in options:
            value = bound.arguments[option.name]
            given |= value if option.kind is option.VAR_KEYWORD else {option.name: value}
        return given


def _noting(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def noting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if "_construction" not in self.__dict__:  # the outermost constructor comes first
            given = {name: _kept(value) for name, value in kwargs.items()}
            kept = (init.__qualname__, tuple(_kept(value) for value in args), given)
            self.__dict__["_construction"] = kept
        init(self, *args, **kwargs)

    return noting


def _kept(value: Any) -> Any:
    """A copy that is independent of lists and configs; see ``Constructed``."""
    if isinstance(value, (Tensor, nn.Module)):
        return value
    if callable(getattr(value, "tolist", None)):  # of NumPy, whose float64 is a float as well
        return value.tolist()
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Mapping):
        return {name: _kept(entry) for name, entry in value.items()}
    return [_kept(entry) for entry in value] if isinstance(value, Sequence) else Unrecorded(value)
