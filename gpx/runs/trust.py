"""Whose classes the config of a run folder may name: gpx's, and those of packages the user trusts.

A run folder may come from anyone, and its ``config.yaml`` names the classes that are built from it.
Everything is judged by name first. Only then are modules imported, of gpx and of trusted packages,
and only a class that is written there and belongs where it stands is accepted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.calibration import Recalibration
from gpx.data.sets.uci import URL_VARIABLE
from gpx.data.source import DataSource
from gpx.errors import CheckpointError, ConfigError
from gpx.kernels import Kernel
from gpx.likelihoods import Likelihood
from gpx.means import Mean
from gpx.methods.base.optimizer import Optimizer
from gpx.models import Model
from gpx.objectives import Objective
from gpx.options.build import parts_of
from gpx.priors import Priors
from gpx.training.initialisation import Initialisation

PLACES: dict[str, tuple[type, ...]] = {
    "data": (DataSource,),
    "kernel": (Kernel,),
    "mean": (Mean,),
    "likelihood": (Likelihood,),
    "approx": (Model,),
    "objective": (Objective,),
    "optimizer": (Optimizer,),
    "init": (Initialisation,),
    "calibrate": (Recalibration,),
    "prior": (Priors,),
}
"""Groups that are built, and what must stand there."""

ANYWHERE = tuple(kind for kinds in PLACES.values() for kind in kinds)
"""What may stand at an option of a trusted class that has no type hint."""

MODEL = ("likelihood", "approx")
"""Groups without which there is no model; whether there is one without a kernel, its class says."""

_DOTTED = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")
_PACKAGE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*")
_CONVERSIONS = ("none", "partial", "object", "all")


def trusted_packages(text: str) -> tuple[str, ...]:
    """The packages of ``trust=a,b`` on a command line; brackets around them are allowed."""
    return tuple(name.strip() for name in text.strip("[]").split(","))


def require_known_classes(
    config: DictConfig, where: str | Path, trust: Sequence[str] | str = ()
) -> None:
    """Raise unless ``config`` builds only classes of gpx or of trusted packages, each in its place.

    Nothing foreign is imported before everything has passed by name. In the places of ``PLACES`` a
    class must be a subclass of what is asked for there, and in an option of a class a subclass of
    what the option's type hint names; anywhere else no class may stand.

    Args:
        config: of a run folder, as read.
        where: the file, for messages.
        trust: packages (or modules) whose classes may be built too, such as ``("my_package",)``.

    Raises:
        CheckpointError: a class that is not to be built, or a group without one; one sentence.
        ConfigError: ``trust`` names something that cannot be a package.
    """
    packages = (trust,) if isinstance(trust, str) else tuple(trust)
    for package in packages:
        if not isinstance(package, str) or not _PACKAGE.fullmatch(package):
            raise ConfigError(f"trust={package!s} is not the name of a package")
    judge = _Judge(str(where), ("gpx", *packages))
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    for name, value in _leaves(content):
        if isinstance(value, str) and "${" in value:
            raise CheckpointError(
                f"{where} holds the interpolation {name}={value!r}, where the config of a run has "
                "a plain value"
            )
        if value == "???":
            raise CheckpointError(f"{where} has no value for {name}")
    judge.names(content, "")
    built = {}
    for group, wanted in PLACES.items():
        node = content.get(group)
        if node is None and group not in MODEL:
            continue
        if not isinstance(node, dict) or "_target_" not in node:
            raise _no_class(where, group, node)
        built[group] = judge.node(node, group, wanted)
    for other, node in content.items():
        if other not in PLACES:
            judge.option(node, str(other), ())  # nothing is built there
    for part, needed in parts_of(built["approx"]).items():
        if needed and part not in built:
            raise _no_class(where, part, None)


def _no_class(where: str | Path, group: str, node: Any) -> CheckpointError:
    shown = "null" if node is None else node
    found = f"a {group} without _target_" if isinstance(node, dict) else f"{group}={shown}"
    return CheckpointError(
        f"{where} has {found}, expected the class of the {group} as {group}._target_ and its "
        "options"
    )


def require_known_server(config: DictConfig, where: str | Path) -> None:
    """Raise unless the data of a run are fetched, where they are missing, from a server of ours.

    Args:
        config: of a run folder, about to have its data read again.
        where: the file, for the message.

    Raises:
        CheckpointError: ``data.base_url`` is another server than $GPX_DATA_URL.
    """
    url = config.data.get("base_url")
    if url is not None and str(url) != os.environ.get(URL_VARIABLE):
        raise CheckpointError(
            f"{where} says that data.base_url={url!r} is the server to fetch missing data from: if "
            f"you trust it, set the environment variable {URL_VARIABLE} to it"
        )


class _Judge:
    """Judges the nodes of one config: all of them by name, then those that are built by class."""

    def __init__(self, where: str, packages: tuple[str, ...]) -> None:
        self.where = where
        self.packages = packages

    def names(self, node: Any, place: str) -> None:
        """Refuse, without importing anything, what is not asked of gpx or of a trusted package."""
        if isinstance(node, dict) and "_target_" in node:
            self._name(node["_target_"], place)
            for key, value in node.items():
                if str(key).startswith("_") and not (
                    key == "_target_" or (key == "_convert_" and value in _CONVERSIONS)
                ):
                    raise CheckpointError(
                        f"{self.where} says {key}={value!r} at {place}, which a run folder cannot "
                        "ask for: only _target_ and named options are read"
                    )
        for key, value in _children(node):
            self.names(value, f"{place}.{key}" if place else key)

    def _name(self, target: Any, place: str) -> None:
        if not isinstance(target, str) or not _DOTTED.fullmatch(target):
            raise CheckpointError(
                f"{self.where} asks for {place}={target!r}, which is not the name of a class"
            )
        if self._package(target) is not None:
            return
        text = f"{self.where} asks for {place}={target}, which is not part of gpx and was not run"
        top = target.partition(".")[0]
        if top not in sys.stdlib_module_names:
            text += (
                f"; if that code is yours, or you trust it, add trust={top} (in Python "
                f"trust=({top!r},))"
            )
        raise CheckpointError(text)

    def _package(self, target: str) -> str | None:
        """The trusted package that ``target`` lies in."""
        inside = [p for p in self.packages if target.startswith(f"{p}.")]
        return max(inside, key=len, default=None)

    def node(self, node: dict[Any, Any], place: str, wanted: tuple[type, ...]) -> type:
        """The class of a node; refused where it, or one in an option below it, does not belong."""
        target = node["_target_"]
        found = self._class(target, place)
        if not issubclass(found, wanted):  # an empty tuple takes nothing
            names = " or ".join(kind.__name__ for kind in wanted)
            need = (
                f"a class of kind {names} must stand there" if names else "no class can stand there"
            )
            raise CheckpointError(f"{self.where} asks for {place}={target}, but {need}")
        hints = _hints(found)
        for key, value in _children(node):
            free = key not in hints and not found.__module__.startswith("gpx.")
            self.option(value, f"{place}.{key}", ANYWHERE if free else self._kinds(hints.get(key)))
        return found

    def option(self, value: Any, place: str, wanted: tuple[type, ...]) -> None:
        """The same for an option, which may hold a class or lists and mappings of them."""
        if isinstance(value, dict) and "_target_" in value:
            self.node(value, place, wanted)
            return
        for key, child in _children(value):
            self.option(child, f"{place}.{key}", wanted)

    def _class(self, target: str, place: str) -> type:
        """The class ``target``, written in gpx or in a trusted package, not only imported there."""
        path, _, name = target.rpartition(".")
        if not _is_module(path):
            raise CheckpointError(
                f"{self.where} asks for {place}={target}, and there is no module {path}: it may be "
                "of another version, or its folder is not on PYTHONPATH"
            )
        try:
            module = importlib.import_module(path)
            found = getattr(module, name, None)
        except Exception as error:  # whatever a trusted module raises
            raise CheckpointError(
                f"{self.where} asks for {place}={target}, and importing {path} failed: {error!r}"
            ) from error
        # a name may stand for a module here and for something else to who walks the attributes
        top, *rest = path.split(".")
        walked: Any = sys.modules[top]
        for part in rest:
            walked = getattr(walked, part, None)
        if walked is not module:
            found = None
        if not isinstance(found, type) or not self._package(f"{found.__module__}.{name}"):
            raise CheckpointError(
                f"{self.where} asks for {place}={target}, which is no class written in "
                f"{self._package(target)}"
            )
        return found

    def _kinds(self, hint: Any) -> tuple[type, ...]:
        """Classes of gpx and of trusted packages that a type hint names."""
        parts = [kind for part in typing.get_args(hint) for kind in self._kinds(part)]
        hint = typing.get_origin(hint) or hint
        if isinstance(hint, type) and self._package(f"{hint.__module__}.{hint.__name__}"):
            parts.append(hint)
        return tuple(parts)


def _is_module(path: str) -> bool:
    """Whether there is a module of that name; imports none, and follows no attributes."""
    top, *rest = path.split(".")
    if top in sys.modules:
        folders = getattr(sys.modules[top], "__path__", None)
    else:
        spec = importlib.util.find_spec(top)
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    name = top
    for part in rest:
        name = f"{name}.{part}"
        spec = None if folders is None else PathFinder.find_spec(name, folders)
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    return True


def _hints(found: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(found.__init__)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):  # names that exist for the type checker only
        return {}


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    """Options of a mapping and items of a list, with their names."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key != "_target_":
                yield str(key), value
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield str(index), value


def _leaves(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with its dotted name, ``_target_`` included."""
    if not isinstance(node, (dict, list)):
        yield place, node
        return
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield from _leaves(value, f"{place}.{key}" if place else str(key))
