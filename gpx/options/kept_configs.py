"""Configs of earlier compositions: of the same choices Hydra composes the same config.

Hydra reads and merges some thirty files for a config, which takes longer than the fit of a small
model. A search over models, a cross-validation or a loop of fits asks for the same ones again.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig

MAX_KEPT = 64
"""Configs that are kept, of some ten kilobytes each."""


class _Kept(NamedTuple):
    """A config, and what it was composed from.

    Attributes:
        files: path, time of the last change and size of every file.
        nodes: of Hydra's store; the same ones, as a node that is stored anew is another.
        config: pickled, so that whoever has it may change it.
    """

    files: list[tuple[str, int, int]]
    nodes: list[ConfigNode]
    config: bytes


_kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()


def kept_or_composed(
    folder: Path, choices: Sequence[str], compose: Callable[[], DictConfig]
) -> DictConfig:
    """The config of ``compose()``, or a copy of what it gave before for the same choices.

    It is composed again if a file of the folder or a node of Hydra's store has changed since. Not
    for several threads at a time.

    Args:
        folder: of the config groups.
        choices: the options that the config is composed of.
        compose: composes a config from these and nothing else.

    Cost: of a config that is kept, the look at 300 files, 2 ms.
    """
    key = tuple(choices)
    files, known = list(_files(folder)), _kept.get(key)
    if known is not None and known.files == files and _same(known.nodes, _stored()):
        _kept.move_to_end(key)
        found: DictConfig = pickle.loads(known.config)
        return found
    config = compose()
    # the first composition also stores the nodes of Hydra's plugins
    _kept[key] = _Kept(files, _stored(), pickle.dumps(config))
    _kept.move_to_end(key)
    while len(_kept) > MAX_KEPT:
        _kept.popitem(last=False)
    return config


def _files(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                found = entry.stat()
                yield entry.path, found.st_mtime_ns, found.st_size


def _stored() -> list[ConfigNode]:
    return list(_nodes(ConfigStore.instance().repo))


def _nodes(store: Mapping[str, Any]) -> Iterator[ConfigNode]:
    for value in store.values():
        if isinstance(value, Mapping):
            yield from _nodes(value)
        else:
            yield value


def _same(first: list[ConfigNode], second: list[ConfigNode]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
