"""Checks of the settings of first-order optimisers, by role of parameters."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch

from gpx.errors import ConfigError
from gpx.tensor_checks import check_one_of, is_number
from gpx.training.indexed_steps import IndexedAdagrad, IndexedSparseAdam
from gpx.training.natural_gradient import NaturalGradient

ALGORITHMS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adagrad": IndexedAdagrad,
    "sgd": torch.optim.SGD,
    "sparse_adam": IndexedSparseAdam,
    "natural": NaturalGradient,
}
SPARSE_ALGORITHMS = ("adagrad", "sgd", "sparse_adam")
"""These change only entries with a gradient; the others also move entries by their moments."""
ROLES = ("hyperparameters", "inducing", "variational", "touched", "precisions", "network")
"""Roles of parameters in gpx's models; settings for a role that a model lacks are ignored."""
OWN_OPTIONS = ("algorithm", "lr", "freeze_steps")
"""Options of a group for every algorithm; all others are options of torch's class."""
DENSE_OPTIONS = ("momentum", "weight_decay")
"""Options with which even the algorithms for sparse gradients move every entry."""


def schedule_factor(name: str, final: float, progress: float) -> float:
    """Learning rate at ``progress`` in [0, 1] of the run, relative to the initial rate.

    Args:
        name: ``constant``, ``exponential`` or ``cosine``.
        final: factor at the end of the run.
        progress: share of the steps done.

    Raises:
        ConfigError: an unknown name.
    """
    if name == "constant":
        return 1.0
    if name == "exponential":
        return final**progress
    if name == "cosine":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ConfigError(
        f"optimizer.schedule.name={_shown(name)}: expected constant, exponential or cosine"
    )


def _shown(value: object) -> object:
    """A value as it is written on the command line."""
    return "null" if value is None else value


def _is_number(value: object) -> bool:
    """Whether ``value`` is a finite number, 0 or more."""
    return is_number(value) and 0.0 <= value < math.inf


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether ``value`` is a list; those of configs are of a class of their own."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def require_number(option: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is a finite number, 0 or more."""
    if not _is_number(value):
        raise ConfigError(f"optimizer.{option}={_shown(value)}: expected a number, 0 or more")


def _require_algorithm(option: str, setting: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown algorithm, or an option that it lacks or of another type."""
    algorithm = setting.get("algorithm", "adam")
    check_one_of(ALGORITHMS, **{f"optimizer.{option}.algorithm": _shown(algorithm)})
    parameters = inspect.signature(ALGORITHMS[algorithm]).parameters
    taken = {name: p.default for name, p in parameters.items() if name not in ("params", "lr")}
    for name, value in setting.items():
        if name in OWN_OPTIONS:
            continue
        if name not in taken:
            near = difflib.get_close_matches(name, (*OWN_OPTIONS, *taken), n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(taken)}"
            raise ConfigError(
                f"optimizer.{option}.{name}: algorithm={algorithm} has no such option; {hint}"
            )
        default = taken[name]
        if isinstance(default, tuple):
            fits = _is_list(value) and len(value) == len(default)
            fits, wanted = fits and all(map(_is_number, value)), f"a list of {len(default)} numbers"
        elif isinstance(default, bool) or default is None:
            fits, wanted = isinstance(value, bool) or value is default, "true or false"
        else:
            fits, wanted = _is_number(value), "a number, 0 or more"
        if not fits:
            raise ConfigError(f"optimizer.{option}.{name}={_shown(value)}: expected {wanted}")


def _require_options(option: str, value: object) -> None:
    """Raise ConfigError unless ``value`` maps names of options to values."""
    if not isinstance(value, Mapping):
        example = "{name: cosine}" if option == "schedule" else "{lr: 0.01}"
        raise ConfigError(
            f"optimizer.{option}={_shown(value)}: expected options by name, such as {example}"
        )


def checked_groups(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A copy of the settings by role, with lists as tuples, which a checkpoint can hold.

    Raises:
        ConfigError: an invalid rate, algorithm, option of the algorithm, or ``freeze_steps``.
    """
    _require_options("groups", groups)
    for role, setting in groups.items():
        _require_options(f"groups.{role}", setting)
        require_number(f"groups.{role}.lr", setting.get("lr"))
        _require_algorithm(f"groups.{role}", setting)
        freeze = setting.get("freeze_steps", 0)
        if not isinstance(freeze, int) or isinstance(freeze, bool) or freeze < 0:
            raise ConfigError(
                f"optimizer.groups.{role}.freeze_steps={_shown(freeze)}: expected a whole "
                "number, 0 or more"
            )
    return {
        role: {name: tuple(value) if _is_list(value) else value for name, value in setting.items()}
        for role, setting in groups.items()
    }


def checked_schedule(schedule: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schedule with defaults filled in; None is a constant one.

    Raises:
        ConfigError: an option other than name and final, or an invalid value.
    """
    if schedule is not None:
        _require_options("schedule", schedule)
    filled = {"name": "constant", "final": 1.0, **dict(schedule or {})}
    unknown = sorted(filled.keys() - {"name", "final"})
    if unknown:
        raise ConfigError(f"optimizer.schedule has no option {unknown[0]}, only name and final")
    require_number("schedule.final", filled["final"])
    schedule_factor(filled["name"], filled["final"], 0.0)
    return filled


def require_sparse(role: str, setting: Mapping[str, Any]) -> None:
    """Raise ConfigError where a step with a sparse gradient would change every entry."""
    algorithm = setting.get("algorithm", "adam")
    if algorithm not in SPARSE_ALGORITHMS:
        raise ConfigError(
            f"optimizer.groups.{role}.algorithm={algorithm} would move entries that were "
            f"not sampled; use one of {', '.join(SPARSE_ALGORITHMS)}"
        )
    for option in DENSE_OPTIONS:
        value = setting.get(option, 0)
        if value:
            raise ConfigError(
                f"optimizer.groups.{role}.{option}={value} would move entries that were not "
                "sampled; leave it out"
            )
