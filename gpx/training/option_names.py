"""Errors of models speak of arguments; on the command line the same things are options.

A model raises ``rank=80 is above the 54 training points``. Whoever trains from a config knows that
number as ``approx.rank``: the config says which node holds an argument of that name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from gpx.errors import GPXError

NODES = ("approx", "objective", "optimizer", "init", "likelihood", "kernel", "mean", "data")
"""Nodes whose options become arguments, in the order in which a name is looked for."""


@contextmanager
def option_names(config: DictConfig, groups: Path | None = None) -> Iterator[None]:
    """Errors of gpx that leave this block name options instead of arguments.

    Args:
        config: of the run.
        groups: folder of the config groups; what is a group there (``inference=``) stays.
    """
    try:
        yield
    except GPXError as error:
        error.args = (with_option_names(str(error), config, groups), *error.args[1:])
        raise


def with_option_names(text: str, config: DictConfig, groups: Path | None = None) -> str:
    """``text`` with every ``argument=`` that one node of ``config`` has written as its option.

    Args:
        text: of an error.
        config, groups: as for ``option_names``.
    """
    options: dict[str, list[str]] = defaultdict(list)
    for node in NODES:
        for name in _leaves(config.get(node), node):
            options[name.rpartition(".")[2]].append(name)
    known = {
        argument: names[0]
        for argument, names in options.items()
        if len(names) == 1
        and argument not in config  # an option of the run itself, such as seed
        and not (names[0].count(".") == 1 and groups is not None and (groups / argument).is_dir())
    }
    if not known:
        return text
    pattern = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    return re.sub(rf"(?<![\w.])({pattern})(?==)", lambda match: known[match[1]], text)


def _leaves(node: object, prefix: str) -> Iterator[str]:
    if not isinstance(node, DictConfig):
        return
    for key in map(str, node):
        if key == "_target_":
            continue
        child = node._get_node(key)
        name = f"{prefix}.{key}"
        if isinstance(child, DictConfig) and not child._is_none():
            yield from _leaves(child, name)
        else:
            yield name
