"""Checks of the settings of first-order optimisers, by role of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from gpx.errors import ConfigError
from gpx.training.algorithms import (
    ALGORITHMS,
    algorithm_class,
    is_rate,
    plain,
    require_options,
    shown,
)

SPARSE_ALGORITHMS = ("adagrad", "sgd", "sparse_adam")
"""These change only entries with a gradient; the others also move entries by their moments."""
SPARSE_CLASSES = (
    *(ALGORITHMS[name] for name in SPARSE_ALGORITHMS),
    torch.optim.Adagrad,
    torch.optim.SparseAdam,
)
"""Their classes, and those of torch that do the same."""
ROLES = ("hyperparameters", "inducing", "variational", "touched", "precisions", "network")
"""Roles of parameters in gpx's models; settings for a role that a model lacks are ignored."""
NATURAL_RATE = 0.1
"""Rate of natural gradient steps without one of their own."""
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
        f"optimizer.schedule.name={shown(name)}: expected constant, exponential or cosine"
    )


def require_number(option: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is a finite number, 0 or more."""
    if not is_rate(value):
        raise ConfigError(f"optimizer.{option}={shown(value)}: expected a number, 0 or more")


def _require_steps(option: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is a number of steps."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"optimizer.{option}={shown(value)}: expected a whole number, 0 or more")


def _require_options(option: str, value: object) -> None:
    """Raise ConfigError unless ``value`` maps names of options to values."""
    if not isinstance(value, Mapping):
        example = "{name: cosine}" if option == "schedule" else "{lr: 0.01}"
        raise ConfigError(
            f"optimizer.{option}={shown(value)}: expected options by name, such as {example}"
        )


def checked_groups(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A copy of the settings by role, with lists as tuples, which a checkpoint can hold.

    Where ``otherwise`` is given, a rate that is None is filled in: ``NATURAL_RATE`` for natural
    steps, and for any other algorithm the rate of ``otherwise``.

    Raises:
        ConfigError: an invalid rate, algorithm, option of the algorithm, ``freeze_steps`` or
            ``otherwise``.
    """
    _require_options("groups", groups)
    groups = {role: _with_rate(setting) for role, setting in groups.items()}
    for role, setting in groups.items():
        _check_setting(f"groups.{role}", setting)
        _require_steps(f"groups.{role}.freeze_steps", setting.get("freeze_steps", 0))
        if "otherwise" in setting:
            _check_setting(f"groups.{role}.otherwise", setting["otherwise"])
    return {role: plain(setting) for role, setting in groups.items()}


def _with_rate(setting: Mapping[str, Any]) -> Mapping[str, Any]:
    """The setting with its rate, if it has none but says what to do ``otherwise``."""
    instead = setting.get("otherwise") if isinstance(setting, Mapping) else None
    if not isinstance(instead, Mapping) or setting.get("lr") is not None:
        return setting
    natural = setting.get("algorithm") == "natural"
    return {**setting, "lr": NATURAL_RATE if natural else instead.get("lr")}


def _check_setting(option: str, setting: Mapping[str, Any]) -> None:
    """Raise ConfigError for an invalid rate, algorithm or option of the algorithm."""
    _require_options(option, setting)
    require_number(f"{option}.lr", setting.get("lr"))
    require_options(option, setting)


def otherwise(setting: Mapping[str, Any]) -> dict[str, Any] | None:
    """The setting to train with where the algorithm does not apply; None if there is none."""
    if "otherwise" not in setting:
        return None
    return {"freeze_steps": setting.get("freeze_steps", 0), **setting["otherwise"]}


def checked_schedule(schedule: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schedule with defaults filled in; None is a constant one without warm-up.

    Raises:
        ConfigError: an option other than name, final and warmup, or an invalid value.
    """
    if schedule is not None:
        _require_options("schedule", schedule)
    filled = {"name": "constant", "final": 1.0, "warmup": 0, **dict(schedule or {})}
    unknown = sorted(filled.keys() - {"name", "final", "warmup"})
    if unknown:
        raise ConfigError(
            f"optimizer.schedule has no option {unknown[0]}, only name, final and warmup"
        )
    _require_steps("schedule.warmup", filled["warmup"])
    require_number("schedule.final", filled["final"])
    schedule_factor(filled["name"], filled["final"], 0.0)
    return filled


def require_sparse(role: str, setting: Mapping[str, Any]) -> None:
    """Raise ConfigError where a step with a sparse gradient would change every entry."""
    algorithm = setting.get("algorithm", "adam")
    if algorithm_class(algorithm, f"groups.{role}") not in SPARSE_CLASSES:
        raise ConfigError(
            f"optimizer.groups.{role}.algorithm={algorithm} is not known to leave entries alone "
            f"that were not sampled; use one of {', '.join(SPARSE_ALGORITHMS)}"
        )
    for option in DENSE_OPTIONS:
        value = setting.get(option, 0)
        if value:
            raise ConfigError(
                f"optimizer.groups.{role}.{option}={value} would move entries that were not "
                "sampled; leave it out"
            )


def require_dense(role: str, setting: Mapping[str, Any], optimiser: torch.optim.Optimizer) -> None:
    """Raise ConfigError where a step with a dense gradient is of an algorithm that takes none."""
    if isinstance(optimiser, torch.optim.SparseAdam):
        raise ConfigError(
            f"optimizer.groups.{role}.algorithm={setting.get('algorithm')} takes sparse gradients "
            "alone, and those of this model have a value in every entry; use adam"
        )
