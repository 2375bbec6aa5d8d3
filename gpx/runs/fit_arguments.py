"""What ``gpx.fit`` is given beside its arrays, as options and config nodes."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpx.constructed import Constructed
from gpx.errors import ConfigError, class_name
from gpx.methods.base.objective import Objective
from gpx.options.given_objects import given_objects
from gpx.options.module_node import OPTIONS, PARTS, node_of

DATA_OPTIONS = (
    *("data", "data.path", "data.root", "data.x", "data.y", "data.test"),
    *("data.noise", "data.weights"),
    *("data.input_names", "data.target_name", "data.target_names", "resume"),
)
"""Options that ``gpx.fit`` refuses, since the data are its arguments."""


def check_options(options: Sequence[object]) -> None:
    """Raise ConfigError unless all are texts, and none names what ``gpx.fit`` sets itself."""
    for option in options:
        if isinstance(option, Constructed):
            raise ConfigError(
                f"gpx.fit takes modules by name, such as kernel=RBF(), got a {class_name(option)} "
                "among the options"
            )
        if not isinstance(option, str):
            raise ConfigError(
                f"gpx.fit takes options one by one as text, such as 'approx=sgpr', got {option!r}"
            )
        name = option.partition("=")[0].lstrip("+~")
        if name in DATA_OPTIONS:
            raise ConfigError(f"gpx.fit takes no {name}=: it trains on the arrays it is given")
        if name.startswith("hydra"):
            raise ConfigError(
                f"gpx.fit takes no {name}=: it composes the configs of gpx alone; give an object "
                "(objective=Mine()), or name a class of yours (objective._target_=package.Mine), "
                "and the run folder by folder="
            )


def as_options(
    choices: Mapping[str, object], options: Sequence[str], arguments: Sequence[str]
) -> list[str]:
    """Further arguments as options.

    Args:
        choices: by name.
        options: as on the command line.
        arguments: names of those of ``gpx.fit``, for suggestions.

    Raises:
        ConfigError: one that is no text or number or list of texts, or that is also given as an
            option.
    """
    found = []
    for name, given in choices.items():
        value = given.item() if isinstance(given, np.generic) else given
        if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            value = f"[{','.join(value)}]"
        if not isinstance(value, (str, int, float)):
            if "." in name:
                raise ConfigError(
                    f"gpx.fit got {name}={type(value).__name__}: give an option with a dot as one "
                    f"text, written as on the command line, '{name}=...'"
                )
            near = difflib.get_close_matches(name, arguments, n=1)
            raise ConfigError(
                f"gpx.fit got {name}={type(value).__name__}: options are texts or numbers, such as "
                "approx='sgpr'" + (f"; did you mean {near[0]}=?" if near else "")
            )
        found.append(f"{name}={value}")
    _require_once(choices, options)
    return found


def _require_once(arguments: Iterable[str], options: Sequence[object]) -> None:
    """Raise ConfigError for a name that is both an argument and an option."""
    named = {str(option).partition("=")[0].lstrip("+~") for option in options}
    for name in sorted(named.intersection(arguments)):
        raise ConfigError(
            f"gpx.fit got {name}= both as an argument and as an option: leave one of them out"
        )


def nodes_of_parts(
    parts: Mapping[str, object], options: Sequence[str], keep: bool, stack: ExitStack
) -> dict[str, dict[str, Any]]:
    """Config nodes of the parts that are objects; texts are read as options.

    Args:
        parts: by the name of their argument.
        options: as on the command line.
        keep: whether the run folder is kept, so that a config must be able to hold the parts.
            Otherwise the node of what none can hold is valid until ``stack`` is closed.
        stack: closed at the end of the run.

    Raises:
        ConfigError: a part that is also given as an option, or that a config cannot hold.
    """
    _require_once([OPTIONS.get(name, name) for name in parts], options)
    nodes = {}
    for name, part in parts.items():
        if isinstance(part, str):
            continue
        try:
            nodes[name] = node_of(part, name, keep)
        except ConfigError as error:
            if not isinstance(part, PARTS[name]):
                raise
            if keep:
                if "keep=False" not in str(error):
                    error.args = (f"{error}; with keep=False nothing is recorded, and it is taken",)
                raise
            if isinstance(part, Objective) and part.total:  # training sets n of its rows
                part = copy.copy(part)
                part.total = 0
            (nodes[name],) = stack.enter_context(given_objects([part]))
        if "num_data" in nodes[name]:  # of an objective
            nodes[name]["num_data"] = "${facts.num_train}"
    return nodes
