"""Checks of options against the signature of the class that they are for."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from gpx.errors import ConfigError
from gpx.options.tree import leaves
from gpx.tensor_checks import is_number

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    list: "a list",
}
"""Types that are checked, and their names in messages; other type hints accept anything."""

_CHOICES: dict[str, str] = {
    "basis": "basis=",
    "features": "inducing=eigenfunctions",
    "selector": "selector=",
    "family": "family=",
    "strategy": "strategy=",
    "inference": "inference=",
    "reinitialise": "inducing=auto",
}
"""Options that only some classes have, and the choice on the command line that sets them."""

MAX_LISTED = 3
"""Most classes that an error lists."""


def check_option_names(node: DictConfig, group: str, target: Any) -> None:
    """Raise ConfigError if ``target`` lacks an option, naming the classes that have it.

    A choice like ``inducing=`` sets options of the chosen model, which may not have them. Classes
    that accept any keyword are not checked.

    Args:
        node, group, target: as for ``check_option_types``.
    """
    taken = _options(target)
    given = [str(name) for name in node if not str(name).startswith("_")]
    unknown = [name for name in given if name not in taken] if taken else []
    if not unknown:
        return
    others = _others(target, unknown)
    text = f"{target.__name__} has no option {' or '.join(unknown)}"
    chosen = [choice for name, choice in _CHOICES.items() if name in unknown]
    near = difflib.get_close_matches(unknown[0], taken, n=1)
    if others:
        having = others if len(others) <= MAX_LISTED else [*others[:MAX_LISTED], "others"]
        text += f", {' and '.join(having)} {'has' if len(others) == 1 else 'have'}"
    elif near:
        text += f"; did you mean {near[0]}?"
    if chosen and others:
        text += f"; {chosen[0]} sets it and needs {'that' if len(others) == 1 else 'one of them'}"
    raise ConfigError(f"{group}.{unknown[0]}: {text}")


def _others(target: Any, options: list[str]) -> list[str]:
    """Public classes of the same kind (model, kernel ...) that have all the options."""
    bases = inspect.getmro(target) if inspect.isclass(target) else ()
    contracts = [base for base in bases if inspect.isabstract(base)]
    if not contracts:
        return []
    windows = [module for name, module in sys.modules.items() if re.fullmatch(r"gpx\.\w+", name)]
    public = {
        getattr(window, name) for window in windows for name in getattr(window, "__all__", ())
    }
    return sorted(
        other.__name__
        for other in public
        if inspect.isclass(other)
        and issubclass(other, contracts[-1])
        and set(options) <= _options(other).keys()
    )


def _parameters(target: Any) -> dict[str, inspect.Parameter]:
    """Parameters of a class or function; empty if they are unknown."""
    if not callable(target):
        return {}
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # written in C
        return {}


def _options(target: Any) -> dict[str, inspect.Parameter]:
    """``_parameters``; empty if the class or function takes any keyword."""
    found = _parameters(target)
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values())
    return {} if free else found


def check_option_types(node: DictConfig, group: str, target: Any) -> None:
    """Raise ConfigError if the value of an option is not of the type that ``target`` expects.

    Options are checked if their type hint consists of plain types and lists, or of classes of gpx
    and modules, which must be given as a node. Options without a hint are not checked, nor are
    nodes with a ``_target_``, nor null where it is the default (``size: int = None``).

    Args:
        node: options of the class, resolved.
        group: name of the node, for the message.
        target: class (or function) that will be called with the options.
    """
    hints, parameters = _hints(target), _parameters(target)
    for name, value in node.items():
        hint = hints.get(str(name))
        if value is None and str(name) in parameters and parameters[str(name)].default is None:
            continue
        if OmegaConf.is_dict(value) and "_target_" in value:
            continue
        shown = "null" if value is None else str(value)
        allowed = _plain(hint)
        if allowed and not any(_fits(value, kind) for kind in allowed):
            wanted = " or ".join(_WORDS.get(kind, kind) for kind in allowed)
            raise ConfigError(f"{group}.{name!s}={shown}: expected {wanted}")
        kinds = _built(hint)
        if kinds and not (value is None and type(None) in kinds):
            named = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise ConfigError(
                f"{group}.{name!s}={shown}: expected a subclass of {named} as "
                f"{group}.{name!s}._target_, and its options"
            )


def check_numbers(config: DictConfig) -> None:
    """Raise ConfigError for NaN, an infinity, or a whole number beyond 64 bits.

    No option accepts these, and checks of ranges may miss them: comparisons with NaN are false.

    Args:
        config: the composed config, of which all nodes and lists are checked.
    """
    for name, value in leaves(OmegaConf.to_container(config, resolve=False)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name}={value}: expected a finite number")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{name}={value}: expected a whole number of at most 64 bits")


def _hints(target: Any) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # hints that only the type checker can resolve
        return {}


def _plain(hint: Any) -> tuple[Any, ...]:
    """The plain types that a type hint allows, and words beside them; empty if it allows others.

    Words alone are left to the class, which names the nearest one.
    """
    if hint in _WORDS:
        return (hint,)
    if typing.get_origin(hint) in (list, tuple, Sequence):
        return (list,)  # entries are checked by the class
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_plain(part) or _literal(part) for part in typing.get_args(hint)]
        found = tuple(kind for part in parts for kind in part) if all(parts) else ()
        return found if {*found} & {*_WORDS} - {type(None)} else ()
    return ()


def _literal(hint: Any) -> tuple[str, ...]:
    """The words of a ``Literal``; empty for any other hint, or one of other values."""
    words = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return words if all(isinstance(word, str) for word in words) else ()


def _built(hint: Any) -> tuple[type, ...]:
    """Classes of gpx or modules, and None, that a type hint allows; empty if it allows others.

    These can only be given as a node.
    """
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if union else (hint,)
    kinds = [part for part in parts if isinstance(part, type) and part is not type(None)]
    known = kinds and all(
        issubclass(kind, nn.Module) or kind.__module__.startswith("gpx.") for kind in kinds
    )
    return parts if known and len(kinds) + (type(None) in parts) == len(parts) else ()


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, str):
        return bool(value == kind)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return is_number(value)
    return OmegaConf.is_list(value) if kind is list else isinstance(value, kind)
