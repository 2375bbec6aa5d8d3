"""The origin of a checkpoint (config, versions, threads), and changes since it was written."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import DictConfig, ListConfig, OmegaConf

from gpx.errors import CheckpointError, ConfigError
from gpx.options.groups import FIXED_GROUPS, TRAINING_GROUPS
from gpx.options.old import current
from gpx.options.tree import leaves

DATA_PATHS = ("data.path", "data.test_path", "data.root", "data.mask", "data.base_url")
"""Locations of the data, which may change: the contents are compared by checksums."""


def origin_of(config: DictConfig, device: torch.device) -> dict[str, Any]:
    """The record of config and environment that a checkpoint holds, as plain values.

    Args:
        config: as written to config.yaml.
        device: of the run.
    """
    import gpx

    plain = OmegaConf.to_container(config, resolve=True)
    return {
        "config": json.loads(json.dumps(plain, default=str)),
        "gpx": gpx.__version__,
        "torch": str(torch.__version__),
        "device": device.type,
        "num_threads": torch.get_num_threads(),
    }


def require_same_model(state: Mapping[str, Any], config: DictConfig, where: str) -> None:
    """Raise CheckpointError if ``config`` is not the one that a checkpoint was trained with.

    ``TRAINING_GROUPS`` (except ``trainer.dtype``), memory budgets and the location of the data may
    differ. Nothing is checked for checkpoints of early versions, which hold no config.

    Args:
        state: contents of the checkpoint.
        config: to be used with it.
        where: file of the config, for the message.
    """
    before = _recorded(state).get("config")
    if not isinstance(before, dict):
        return
    compared = ("seed", "fixed", *FIXED_GROUPS, "trainer")
    old = _options(current(before), compared)
    new = _options(json.loads(_text(OmegaConf.to_container(config, resolve=True))), compared)
    # elsewhere a mask is the name of an array in the file of the data
    masks_are_files = str(new.get("data._target_")).endswith("FrameFolder")
    for name in sorted({*old, *new}):
        free = name.startswith("trainer.") and name != "trainer.dtype"
        free = free or name.endswith(".memory_budget")  # of the machine, not of the model
        moved = name in DATA_PATHS and (name != "data.mask" or masks_are_files)
        if free or moved or _same(old.get(name), new.get(name)):
            continue
        found = f"has {name}={new[name]}" if name in new else f"lacks {name}"
        was = (
            f"with {old[name]}: restore that value" if name in old else "without: restore the file"
        )
        raise CheckpointError(
            f"{where} {found}, but its checkpoint was trained {was}, or start a new run"
        )


def with_changes(config: DictConfig, options: Sequence[str]) -> DictConfig:
    """A copy of a run's config, changed by the options of the session that resumes it.

    With ``trainer.memory_budget``, budgets of the same number elsewhere follow it. Those of zero,
    which runs of earlier versions could have, become automatic, as in ``gpx.load``.

    Args:
        config: of the run, as in its folder.
        options: ``name=value`` each, of ``TRAINING_GROUPS`` or ``DATA_PATHS``.

    Raises:
        ConfigError: an option that must not change, or that the run does not have.
    """
    changed = copy.deepcopy(config)
    automatic = OmegaConf.select(changed, "trainer.memory_budget") == 0
    _refer_to_budget(changed, 0)
    if automatic:
        changed.trainer.memory_budget = None
    for option in options:
        name, equals, _ = option.partition("=")
        group, dot, _ = name.partition(".")
        changeable = bool(dot) and group in TRAINING_GROUPS and name != "trainer.dtype"
        if not equals or not (changeable or name in DATA_PATHS):
            raise ConfigError(
                f"resume= continues with the config of the run, and {option} cannot be changed; "
                f"only {', '.join(f'{each}.*' for each in TRAINING_GROUPS)} and the location of "
                "the data (data.path) can; start a new run to change it"
            )
        above, _, last = name.rpartition(".")
        node = OmegaConf.select(changed, above)
        if not isinstance(node, DictConfig) or last not in node:
            raise ConfigError(f"{option}: the run has no option {name}")
        if name == "trainer.memory_budget" and node.memory_budget is not None:
            _refer_to_budget(changed, node.memory_budget)
        OmegaConf.update(changed, name, OmegaConf.select(OmegaConf.from_dotlist([option]), name))
    return changed


def _refer_to_budget(node: object, budget: object) -> None:
    """Let every ``memory_budget`` below ``node`` that equals ``budget`` follow the trainer's.

    config.yaml holds the numbers in place of the references that the run was composed with.
    """
    if isinstance(node, DictConfig) and not node._is_none():
        for name in node:
            if name == "memory_budget" and node[name] == budget:
                node[name] = "${trainer.memory_budget}"
            else:
                _refer_to_budget(node._get_node(name), budget)
    elif isinstance(node, ListConfig) and not node._is_none():
        for place in range(len(node)):
            _refer_to_budget(node._get_node(place), budget)


def changes(state: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lines for the user on what has changed since a checkpoint was written.

    Args:
        state: contents of the checkpoint.
        now: ``origin_of`` the session that resumes the run.
    """
    before = _recorded(state)
    lines = []
    old, new = (_options(record.get("config", {}), TRAINING_GROUPS) for record in (before, now))
    if old:
        lines += [
            f"note: {name} is {new.get(name, 'nothing')} from now on, it was "
            f"{old.get(name, 'nothing')}"
            for name in sorted({*old, *new})
            if name != "trainer.num_threads" and not _same(old.get(name), new.get(name))
        ]
    for name, what in (
        ("gpx", "version of gpx"),
        ("torch", "version of torch"),
        ("device", "device"),
    ):
        if name in before and before[name] != now[name]:
            lines.append(
                f"note: the {what} is {now[name]} from now on, it was {before[name]}: results may "
                "differ from those of a run without a stop"
            )
    threads = before.get("num_threads", now["num_threads"])
    if threads != now["num_threads"] and now["device"] == "cpu":
        lines.append(
            f"note: trainer.num_threads is {now['num_threads']} from now on, it was {threads}: "
            "sums are taken in another order, so results may differ in the fourth digit from "
            "those of a run without a stop"
        )
    return lines


def version_note(before: Any) -> str:
    """Text " (trained with gpx X, this is gpx Y)" if the versions differ, otherwise empty."""
    import gpx

    if before in (None, gpx.__version__):
        return ""
    return f" (trained with gpx {before}, this is gpx {gpx.__version__})"


def version_of(state: Mapping[str, Any]) -> Any:
    """Version of gpx that wrote a checkpoint; None if it is not recorded."""
    return _recorded(state).get("gpx")


def _recorded(state: Mapping[str, Any]) -> Mapping[str, Any]:
    found = state.get("origin")
    return found if isinstance(found, dict) else {}


def _options(config: Any, groups: tuple[str, ...]) -> dict[str, str]:
    """Options of some groups by dotted name, as JSON; a list is one value."""
    nodes = config if isinstance(config, dict) else {}
    return {
        name: _text(value)
        for group in groups
        if nodes.get(group) is not None  # null is the same as absent
        for name, value in leaves(nodes[group], group, lists=False)
    }


def _same(old: str | None, new: str | None) -> bool:
    """Whether two values in JSON are equal; 1 equals 1.0, and NaN equals NaN."""
    if old is None or new is None:
        return old is new
    return old == new or json.loads(old) == json.loads(new)


def _text(value: Any) -> str:
    return json.dumps(value, default=str)
