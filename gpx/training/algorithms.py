"""The optimisers of torch that steps of a role of parameters are made with, by name."""

from __future__ import annotations

import difflib
import inspect
import math
import pydoc
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch

from gpx.errors import ConfigError
from gpx.tensor_checks import is_number
from gpx.training.indexed_steps import IndexedAdagrad, IndexedSparseAdam
from gpx.training.natural_gradient import NaturalGradient

ALGORITHMS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adagrad": IndexedAdagrad,
    "sgd": torch.optim.SGD,
    "sparse_adam": IndexedSparseAdam,
    "natural": NaturalGradient,
}
"""Those with a short name; any other is named by its class, such as ``torch.optim.AdamW``."""
OWN_OPTIONS = ("algorithm", "lr", "freeze_steps", "otherwise")
"""Options of a group for every algorithm; all others are options of torch's class."""


def algorithm_class(name: object, option: str) -> type[torch.optim.Optimizer]:
    """The class that ``algorithm=`` names.

    Args:
        name: one of ``ALGORITHMS``, or the dotted name of a subclass of ``torch.optim.Optimizer``
            that steps without a closure and has a learning rate.
        option: name of the group of settings, for messages.

    Raises:
        ConfigError: there is no such class, or it cannot be used.
    """
    place = f"optimizer.{option}.algorithm={shown(name)}"
    if not isinstance(name, str) or "." not in name:
        if isinstance(name, str) and name in ALGORITHMS:
            return ALGORITHMS[name]
        raise ConfigError(
            f"{place}: expected one of {', '.join(ALGORITHMS)}, or the name of a class, such as "
            f"{_similar(name)}"
        )
    try:
        kind = pydoc.locate(name)
    except pydoc.ErrorDuringImport as error:
        raise ConfigError(f"{place} cannot be imported: {error.value!r}") from error
    if kind is None:
        raise ConfigError(f"{place}: nothing has that name; it may not be on PYTHONPATH")
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
        raise ConfigError(f"{place} is no subclass of torch.optim.Optimizer")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{place} evaluates the loss several times in a step, which a mini-batch optimiser "
            "does not offer; optimizer=lbfgsb is for evidences of all data"
        )
    if "lr" not in inspect.signature(kind).parameters and not _takes_any(kind):
        raise ConfigError(f"{place} has no option lr, and lr= and schedule= set it")
    return kind


def _similar(name: object) -> str:
    """The name of torch's class that is closest to ``name``."""
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type)]
    by_word = {kind.__name__.lower(): kind.__name__ for kind in kinds}
    near = difflib.get_close_matches(name.lower(), by_word, n=1) if isinstance(name, str) else []
    return f"torch.optim.{by_word[near[0]] if near else 'AdamW'}"


def _takes_any(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether the constructor takes any keyword."""
    parameters = inspect.signature(kind).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def options_of(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    """Options of the constructor with their defaults, without the parameters and the rate."""
    _, *parameters = inspect.signature(kind).parameters.values()
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default for p in parameters if p.kind not in free and p.name != "lr"}


def require_options(option: str, setting: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown algorithm, or an option that it lacks or of another type.

    Args:
        option: name of the group of settings, for messages.
        setting: its options.
    """
    algorithm = setting.get("algorithm", "adam")
    kind = algorithm_class(algorithm, option)
    taken = options_of(kind)
    named = algorithm in ALGORITHMS  # of others the ranges are not known here
    for name, value in setting.items():
        if name in OWN_OPTIONS:
            continue
        if name not in taken:
            if _takes_any(kind):
                continue
            near = difflib.get_close_matches(name, (*OWN_OPTIONS, *taken), n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(taken)}"
            raise ConfigError(
                f"optimizer.{option}.{name}: algorithm={algorithm} has no such option; {hint}"
            )
        wanted = _misfit(value, taken[name], named)
        if wanted:
            raise ConfigError(f"optimizer.{option}.{name}={shown(value)}: expected {wanted}")


def _misfit(value: object, default: object, named: bool) -> str:
    """What an option should be, judged by its default; empty if ``value`` may be that.

    Args:
        named: whether the algorithm is one of ``ALGORITHMS``, whose numbers are 0 or more and whose
            options without a default are true or false.
    """
    fits_number = is_rate if named else _is_finite
    number = "a number, 0 or more" if named else "a number"
    if isinstance(default, tuple):
        fits = is_list(value) and len(value) == len(default) and all(map(fits_number, value))
        if not named and is_list(value) and len(value) == len(default):
            fits = all(_is_finite(v) or v is d for v, d in zip(value, default, strict=True))
        return "" if fits else f"a list of {len(default)} numbers"
    if isinstance(default, bool) or (named and default is None):
        return "" if isinstance(value, bool) or value is default else "true or false"
    if is_number(default):
        return "" if fits_number(value) else number
    if isinstance(default, str):
        return "" if isinstance(value, str) else "text"
    return ""


def is_rate(value: object) -> bool:
    """Whether ``value`` is a finite number, 0 or more."""
    return is_number(value) and 0.0 <= value < math.inf


def _is_finite(value: object) -> bool:
    return is_number(value) and math.isfinite(value)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether ``value`` is a list; those of configs are of a class of their own."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def plain(value: Any) -> Any:
    """``value`` with tuples and dicts in place of the lists and mappings of a config."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    return tuple(plain(entry) for entry in value) if is_list(value) else value


def shown(value: object) -> object:
    """A value as it is written on the command line."""
    return "null" if value is None else value
