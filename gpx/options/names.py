"""Translate arguments and classes in messages into options of the command line.

A model raises ``rank=80 is above the 54 training points``. A user who trains from a config needs to
read ``approx.rank=80`` instead; the node that holds the argument is found in the config. Messages
of the modules below are translated as follows:

- ``rank=80`` becomes ``approx.rank=80`` if exactly one node of the config has the argument;
  ``rank=None`` becomes ``approx.rank=null``, and ``outputscale was set to -1`` (a parameter, whose
  name may be all that it knows) ``kernel.outputscale was set to -1``.
- ``IterativeOptions.tolerance`` becomes ``approx.iterative.tolerance``, even if other nodes have an
  argument of that name, and without an equals sign.
- ``kernel=RBF(), Matern32()`` becomes ``kernel=rbf, matern32``, and ``model=SVGP()`` becomes
  ``approx=svgp``: the choices whose config builds these classes. ``Bernoulli(link=probit)`` is the
  choice with that option.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig, OmegaConf

from gpx.errors import GPXError
from gpx.options.config import CONFIGS
from gpx.options.groups import NODES

GROUPS = {"model": "approx", "calibration": "calibrate"}
"""Arguments whose config group has another name."""

VALUED = ("inference",)
"""Groups whose choice sets an argument of the same name, together with other options."""

SHARED = ("trainer", "objective", "grid")
"""Nodes whose options are referred to by others, such as ``${trainer.memory_budget}``."""

WORDS = {"None": "null", "True": "true", "False": "false"}
"""Values in Python and on the command line."""


@contextmanager
def option_names(config: DictConfig) -> Iterator[None]:
    """Translate the messages of errors of gpx that leave this block, and of its warnings.

    Args:
        config: of the run.
    """
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        translated = with_option_names(str(message), config)
        text = message if translated == str(message) else category(translated)
        shown(text, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    except GPXError as error:
        error.args = (with_option_names(str(error), config), *error.args[1:])
        raise
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = shown


def with_option_names(text: str, config: DictConfig, node: str | None = None) -> str:
    """``text`` with arguments and classes translated into options of ``config``.

    An argument of the model that has the name of a config group (``inference=``) is left as it is.

    Args:
        text: of an error, a warning or a line for the user.
        config: of the run.
        node: name of the node whose class raised the error; its arguments are preferred.
    """
    text = _with_choices(text, config)
    options: dict[str, list[str]] = defaultdict(list)
    of_class: dict[str, str] = {}
    words = set(re.findall(r"\w+", text))  # to follow every option of a config would take long
    for each in NODES:
        for name, built in _below(config.get(each), each):
            argument = name.rpartition(".")[2]
            if argument not in words:
                continue
            options[argument].append(name)
            if built in words:
                of_class[f"{built}.{argument}"] = _referred(name, config)
    known: dict[str, str] = {}
    for argument, names in options.items():
        nearest = [name for name in names if node is not None and name.startswith(f"{node}.")]
        if argument in config and not nearest:  # an option of the run itself, such as seed
            continue
        if (CONFIGS / argument).is_dir() and f"approx.{argument}" in names:
            continue
        meant = {_referred(name, config) for name in nearest or names}
        given = {name for name in meant if not str(_raw(name, config)).startswith("${facts.")}
        if len(given or meant) == 1:
            known[argument] = (given or meant).pop()
    if of_class:
        text = re.sub(_either(of_class), lambda match: of_class[match[1]], text)
    if known:
        text = re.sub(_either(known) + "(?==| was set to )", lambda match: known[match[1]], text)
    return re.sub(
        rf"(?:(?<==)|(?<=\b(?:or|be) ))({'|'.join(WORDS)})\b", lambda match: WORDS[match[1]], text
    )


def _either(names: dict[str, str]) -> str:
    """A pattern that matches any of the names as a whole."""
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return rf"(?<![\w./,])(?<!\w\()({listed})\b"


def _below(node: object, prefix: str) -> Iterator[tuple[str, str]]:
    """Dotted names of the options below a node, each with the name of its class."""
    if not isinstance(node, DictConfig):
        return
    built = _class(node)
    for key in map(str, node):
        if key == "_target_":
            continue
        child = node._get_node(key)
        name = f"{prefix}.{key}"
        yield name, built
        if isinstance(child, DictConfig) and not child._is_none():
            yield from _below(child, name)


def _class(node: object) -> str:
    """Name of the class of a node; empty if it has none."""
    if not isinstance(node, DictConfig) or node._is_none():
        return ""
    return str(node.get("_target_") or "").rpartition(".")[2]


def _referred(name: str, config: DictConfig) -> str:
    """The option that ``name`` refers to; ``name`` itself if it has a value of its own."""
    pattern = rf"\$\{{(?:oc\.select:)?((?:{'|'.join(SHARED)})\.[\w.]+)[,}}]"
    other = re.match(pattern, str(_raw(name, config)))
    if other is None:
        return name
    above, _, key = other[1].rpartition(".")
    holder = OmegaConf.select(config, above)
    return _referred(other[1], config) if holder is not None and key in holder else name


def _raw(name: str, config: DictConfig) -> object:
    """The value of an option, or the text of its reference to another option.

    None for an option below a key that has dots itself, such as the name of a parameter that has a
    prior: nothing can be found below it by its dotted name.
    """
    above, _, key = name.rpartition(".")
    node = OmegaConf.select(config, above)
    child = node._get_node(key) if isinstance(node, DictConfig) else None
    return None if child is None else child._value()


def _with_choices(text: str, config: DictConfig) -> str:
    """``text`` with ``argument=Class()``, and further classes in a list, as choices of a group."""
    last = ""

    def choice(match: re.Match[str]) -> str:
        nonlocal last
        argument, name, option = match[1], match[2], match[3]
        last = GROUPS.get(argument, argument) if argument else last
        chosen = _choice(name, option, last, config) if last else None
        if chosen is None:
            return match[0]
        return f"{last}={chosen}" if argument else chosen

    text = re.sub(r"(?<![\w.])(?:(\w+)=)?(?:gpx\.\w+\.)?([A-Z]\w*)\((\w+=\w+)?\)", choice, text)
    for argument, group in GROUPS.items():
        text = re.sub(rf"(?<![\w./,]){argument}=", f"{group}=", text)
    values = {
        f"{argument}={value}": f"{argument}={path.stem}"
        for argument in VALUED
        if f"{argument}=" in text
        for path in sorted((CONFIGS / argument).glob("*.yaml"))
        if (value := OmegaConf.select(OmegaConf.load(path), f"approx.{argument}")) is not None
    }
    if not values:
        return text
    return re.sub(_either(values), lambda match: values[match[1]], text)


Stamp = tuple[tuple[Path, int], ...]
"""Files, each with the time of its last change."""


def _stamp(group: str) -> Stamp:
    files = sorted((CONFIGS / group).glob("*.yaml"))
    return tuple((file, file.stat().st_mtime_ns) for file in files)


@lru_cache(maxsize=32)
def _contents(files: Stamp) -> dict[str, DictConfig]:
    """The config files of a group by their choice, merged with those in their ``defaults``.

    Read once as long as no file changes: a message with a list of classes looks for each.
    """
    own = {path.stem: OmegaConf.load(path) for path, _ in files}

    def merged(name: str) -> DictConfig:
        content = own[name]
        assert isinstance(content, DictConfig)
        bases = [merged(each) for each in content.get("defaults", []) if each in own]
        made = OmegaConf.merge(*bases, content)
        assert isinstance(made, DictConfig)
        return made

    return {name: merged(name) for name in own}


def _choice(name: str, option: str | None, group: str, config: DictConfig) -> str | None:
    """The choice of a group that builds a class; None if there is none or it is ambiguous.

    Of several choices, one that is named after the class or the model is preferred.

    Args:
        name: of the class.
        option: ``name=value`` that the config must have; None: no condition.
        group: folder of choices.
        config: of the run.
    """
    wanted, _, value = (option or "").partition("=")
    building = [
        choice
        for choice, content in _contents(_stamp(group)).items()
        for node in (content, OmegaConf.select(content, group))
        if _class(node) == name and (not wanted or str(node.get(wanted)) == value)
    ]
    if len(building) > 1:
        model = _class(config.get("approx"))
        own = None if group == "approx" else _choice(model, None, "approx", config)
        named = [each for each in building if each == own or name.lower().startswith(each)]
        building = named or building
    return building[0] if len(building) == 1 else None
