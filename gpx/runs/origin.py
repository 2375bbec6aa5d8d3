"""What a checkpoint was trained with: the config, versions, threads; and what has changed since."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from gpx.errors import CheckpointError, ConfigError
from gpx.options.old import current

BOUND = ("seed", "data", "kernel", "mean", "likelihood", "approx", "calibrate", "prior")
"""Groups that a checkpoint is only good for as they were; of ``trainer``, the dtype."""
STEERING = ("objective", "optimizer", "trainer")
"""Groups that may change from one session of a run to the next, which is said."""
WHEREABOUTS = ("data.path", "data.test_path", "data.root", "data.mask", "data.base_url")
"""Where data lie: they may be moved, and checksums know them again."""


def origin_of(config: DictConfig, device: torch.device) -> dict[str, Any]:
    """Plain values that go into a checkpoint.

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
    """Raise CheckpointError where ``config`` is not the one that a checkpoint was trained with.

    What steers training (objective, optimizer, trainer but its dtype) may differ, and so may the
    place where data lie. Checkpoints of versions that kept no config pass.

    Args:
        state: contents of the checkpoint.
        config: that is about to be used with it.
        where: its file or folder, for the message.
    """
    before = _recorded(state).get("config")
    if not isinstance(before, dict):
        return
    old = _options(current(before), (*BOUND, "trainer"))
    new = _options(
        json.loads(_text(OmegaConf.to_container(config, resolve=True))), (*BOUND, "trainer")
    )
    for name in sorted({*old, *new}):
        free = name.startswith("trainer.") and name != "trainer.dtype"
        if free or name in WHEREABOUTS or _same(old.get(name), new.get(name)):
            continue
        raise CheckpointError(
            f"{where} says {name}={new.get(name, 'nothing')}, and its checkpoint was trained with "
            f"{old.get(name, 'nothing')}: put that back, or train a new run"
        )


def with_changes(config: DictConfig, options: Sequence[str]) -> DictConfig:
    """The config of a run with what the session that goes on with it says otherwise.

    Args:
        config: of the run, as it stands in its folder.
        options: ``name=value`` each, of what steers training or of where data lie.

    Raises:
        ConfigError: an option of another kind, or one that the run does not have.
    """
    changed = copy.deepcopy(config)
    for option in options:
        name, equals, _ = option.partition("=")
        group, dot, _ = name.partition(".")
        steers = bool(dot) and group in STEERING and name != "trainer.dtype"
        if not equals or not (steers or name in WHEREABOUTS):
            raise ConfigError(
                f"resume= goes on with the run's own config: {option} cannot be another, only "
                f"{', '.join(f'{each}.*' for each in STEERING)} and where data lie (data.path) "
                "can; start a new run to change it"
            )
        above, _, last = name.rpartition(".")
        node = OmegaConf.select(changed, above)
        if not isinstance(node, DictConfig) or last not in node:
            raise ConfigError(f"{option}: the run has no option {name}")
        OmegaConf.update(changed, name, OmegaConf.select(OmegaConf.from_dotlist([option]), name))
    return changed


def changes(state: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lines on what has changed since a checkpoint was written, for a run that goes on from it.

    Args:
        state: contents of the checkpoint.
        now: ``origin_of`` the session that goes on.
    """
    before = _recorded(state)
    lines = []
    old, new = (_options(record.get("config", {}), STEERING) for record in (before, now))
    if old:
        lines += [
            f"note: {name}={new.get(name, 'nothing')} from here on, "
            f"{old.get(name, 'nothing')} until now"
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
                f"note: the {what} is {now[name]} from here on, {before[name]} until now: results "
                "may differ from those of a run that was never stopped"
            )
    threads = before.get("num_threads", now["num_threads"])
    if threads != now["num_threads"] and now["device"] == "cpu":
        lines.append(
            f"note: trainer.num_threads={now['num_threads']} from here on, {threads} until now: "
            "sums are taken in another order, so results may differ in the fourth digit from "
            "those of a run that was never stopped"
        )
    return lines


def version_note(before: Any) -> str:
    """ " (trained with gpx X, this is gpx Y)" for another version than this; otherwise empty."""
    import gpx

    if before in (None, gpx.__version__):
        return ""
    return f" (trained with gpx {before}, this is gpx {gpx.__version__})"


def version_of(state: Mapping[str, Any]) -> Any:
    """Version of gpx that wrote a checkpoint; None where it kept none."""
    return _recorded(state).get("gpx")


def _recorded(state: Mapping[str, Any]) -> Mapping[str, Any]:
    found = state.get("origin")
    return found if isinstance(found, dict) else {}


def _options(config: Any, groups: tuple[str, ...]) -> dict[str, str]:
    """Values by dotted name as JSON; a list is one value."""
    found: dict[str, str] = {}

    def enter(node: Any, name: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                enter(value, f"{name}.{key}")
        else:
            found[name] = _text(node)

    for group in groups:
        if isinstance(config, dict) and config.get(group) is not None:  # as if it were not there
            enter(config[group], group)
    return found


def _same(old: str | None, new: str | None) -> bool:
    """Whether two values are equal: 1 is 1.0, and NaN is NaN."""
    if old is None or new is None:
        return old is new
    return old == new or json.loads(old) == json.loads(new)


def _text(value: Any) -> str:
    return json.dumps(value, default=str)
