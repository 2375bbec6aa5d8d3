"""Options checked against the type hints of the class they go to, before it is built."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

from omegaconf import DictConfig

from gpx.errors import ConfigError

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}
"""Types that are checked, in a user's words; every other hint accepts anything."""


def check_option_types(node: DictConfig, group: str, target: Any) -> None:
    """Raise ConfigError, naming the option, where a value cannot be what ``target`` expects.

    Only plain values (numbers, words, true, false, null) are compared, and only where the type hint
    is made of plain types: classes that are written without hints accept everything.

    Args:
        node: options of the class, resolved.
        group: name of the node, for the message.
        target: class (or function) that will be called with the options.
    """
    hints = _hints(target)
    for name, value in node.items():
        allowed = _plain(hints.get(str(name)))
        if not allowed or not (value is None or isinstance(value, (bool, int, float, str))):
            continue
        if not any(_fits(value, kind) for kind in allowed):
            shown = "null" if value is None else str(value)
            wanted = " or ".join(_WORDS[kind] for kind in allowed)
            raise ConfigError(f"{group}.{name!s}={shown}: expected {wanted}")


def _hints(target: Any) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # names that exist for the type checker only
        return {}


def _plain(hint: Any) -> tuple[Any, ...]:
    """The plain types that ``hint`` allows; empty when it allows anything else."""
    if hint in _WORDS:
        return (hint,)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_plain(part) for part in typing.get_args(hint)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    return ()


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)
