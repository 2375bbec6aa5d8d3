"""Check that the config of a run folder names only classes of gpx and of trusted packages.

A run folder may come from anyone, and its ``config.yaml`` names the classes to build. All names are
checked first. Only then are modules of gpx and of trusted packages imported. A class is accepted if
it is defined in such a package and is of the kind that its place in the config requires. Names of
torch's optimisers (``optimizer.groups.*.algorithm``) are classes as well, of gpx, of a trusted
package or of ``torch.optim``.
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

import torch
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
from gpx.options.tree import leaves
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
"""Config groups that are built, and the base class that each requires."""

ANYWHERE = tuple(kind for kinds in PLACES.values() for kind in kinds)
"""Base classes accepted for an option of a trusted class without a type hint."""

REQUIRED = ("likelihood", "approx")
"""Groups that every model needs; whether it needs a kernel depends on its class."""

ALGORITHMS = "torch.optim"
"""Where optimisers of a role of parameters may come from, beside gpx and trusted packages."""

_DOTTED = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+")
_PACKAGE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*")
_CONVERSIONS = ("none", "partial", "object", "all")


def trusted_packages(text: str) -> tuple[str, ...]:
    """The packages of ``trust=a,b`` or ``trust=[a,b]`` on a command line."""
    return tuple(name.strip() for name in text.strip("[]").split(","))


def require_known_classes(
    config: DictConfig, where: str | Path, trust: Sequence[str] | str = ()
) -> None:
    """Raise unless ``config`` builds only classes of gpx or of trusted packages, each in its place.

    Nothing is imported before all names have passed. In ``PLACES`` a class must be a subclass of
    the base class listed there; in an option of a class it must be a subclass of what the type hint
    of the option names. Classes are refused anywhere else.

    Args:
        config: of a run folder, as read.
        where: the file, for messages.
        trust: further packages (or modules) whose classes are accepted: ``("my_package",)``.

    Raises:
        CheckpointError: a class that is not accepted, or a group without a class.
        ConfigError: ``trust`` holds a text that is not the name of a package.
    """
    packages = (trust,) if isinstance(trust, str) else tuple(trust)
    for package in packages:
        if not isinstance(package, str) or not _PACKAGE.fullmatch(package):
            raise ConfigError(f"trust={package!s} is not the name of a package")
    check = _ClassCheck(str(where), ("gpx", *packages))
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    for name, value in leaves(content):
        if isinstance(value, str) and "${" in value:
            raise CheckpointError(
                f"{where} holds the interpolation {name}={value!r}, but the config of a run must "
                "hold plain values"
            )
        if value == "???":
            raise CheckpointError(f"{where} has no value for {name}")
    check.names(content, "")
    algorithms = dict(_algorithms(content, ""))
    for place, target in algorithms.items():
        check.algorithm_name(target, place)
    for place, target in algorithms.items():
        check.algorithm(target, place)
    built = {}
    for group, wanted in PLACES.items():
        node = content.get(group)
        if node is None and group not in REQUIRED:
            continue
        if not isinstance(node, dict) or "_target_" not in node:
            raise _no_class(where, group, node)
        built[group] = check.node(node, group, wanted)
    for other, node in content.items():
        if other not in PLACES:
            check.option(node, str(other), ())  # nothing is built there
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
    """Raise unless the server in the config of a run is the one that the user has set.

    Args:
        config: of a run folder whose data are to be read again.
        where: the file, for the message.

    Raises:
        CheckpointError: ``data.base_url`` differs from $GPX_DATA_URL.
    """
    url = config.data.get("base_url")
    if url is not None and str(url) != os.environ.get(URL_VARIABLE):
        raise CheckpointError(
            f"{where} would download missing data from data.base_url={url!r}: if you trust this "
            f"server, set the environment variable {URL_VARIABLE} to it"
        )


class _ClassCheck:
    """Checks the nodes of one config: first all names, then the classes of nodes to be built."""

    def __init__(self, where: str, packages: tuple[str, ...]) -> None:
        self.where = where
        self.packages = packages

    def names(self, node: Any, place: str) -> None:
        """Refuse, without importing anything, names outside gpx and the trusted packages."""
        if isinstance(node, dict) and "_target_" in node:
            self._name(node["_target_"], place)
            for key, value in node.items():
                if str(key).startswith("_") and not (
                    key == "_target_" or (key == "_convert_" and value in _CONVERSIONS)
                ):
                    raise CheckpointError(
                        f"{self.where} has {key}={value!r} at {place}, which is not allowed in a "
                        "run folder: only _target_ and named options are"
                    )
        for key, value in _children(node):
            self.names(value, f"{place}.{key}" if place else key)

    def algorithm_name(self, target: str, place: str) -> None:
        """Refuse, without importing anything, an optimiser of torch from anywhere else."""
        if not target.startswith(f"{ALGORITHMS}."):
            self._name(target, place)

    def algorithm(self, target: str, place: str) -> None:
        """Raise unless ``target`` is an optimiser of torch."""
        packages = (*self.packages, ALGORITHMS)
        found = _ClassCheck(self.where, packages)._class(target, place)
        if not issubclass(found, torch.optim.Optimizer):
            raise CheckpointError(
                f"{self.where} has {place}={target}, but a subclass of torch.optim.Optimizer is "
                "expected"
            )

    def _name(self, target: Any, place: str) -> None:
        if not isinstance(target, str) or not _DOTTED.fullmatch(target):
            raise CheckpointError(
                f"{self.where} has {place}={target!r}, which is not the name of a class"
            )
        if self._package(target) is not None:
            return
        text = f"{self.where} has {place}={target}, which is not part of gpx and was not run"
        top = target.partition(".")[0]
        if top not in sys.stdlib_module_names:
            text += (
                f"; if that code is yours, or you trust it, add trust={top} (in Python "
                f"trust=({top!r},))"
            )
        raise CheckpointError(text)

    def _package(self, target: str) -> str | None:
        """The trusted package that contains ``target``; None if none does."""
        inside = [p for p in self.packages if target.startswith(f"{p}.")]
        return max(inside, key=len, default=None)

    def node(self, node: dict[Any, Any], place: str, wanted: tuple[type, ...]) -> type:
        """The class of a node; raises if it, or a class in one of its options, is not accepted."""
        target = node["_target_"]
        found = self._class(target, place)
        if not issubclass(found, wanted):  # always raises for an empty tuple
            names = " or ".join(kind.__name__ for kind in wanted)
            need = f"a subclass of {names} is expected" if names else "no class is expected there"
            raise CheckpointError(f"{self.where} has {place}={target}, but {need}")
        hints = _hints(found)
        for key, value in _children(node):
            free = key not in hints and not found.__module__.startswith("gpx.")
            self.option(value, f"{place}.{key}", ANYWHERE if free else self._kinds(hints.get(key)))
        return found

    def option(self, value: Any, place: str, wanted: tuple[type, ...]) -> None:
        """Check an option, which may hold a class, or lists and mappings of classes."""
        if isinstance(value, dict) and "_target_" in value:
            self.node(value, place, wanted)
            return
        for key, child in _children(value):
            self.option(child, f"{place}.{key}", wanted)

    def _class(self, target: str, place: str) -> type:
        """The class ``target``; must be defined, not just imported, in an accepted package."""
        path, _, name = target.rpartition(".")
        if not _is_module(path):
            raise CheckpointError(
                f"{self.where} has {place}={target}, and there is no module {path}: it may be of "
                "another version, or its folder is not on PYTHONPATH"
            )
        try:
            module = importlib.import_module(path)
            found = getattr(module, name, None)
        except Exception as error:  # whatever a trusted module raises
            raise CheckpointError(
                f"{self.where} has {place}={target}, and importing {path} failed: {error!r}"
            ) from error
        # the module must also be what attribute access from its top package leads to
        top, *rest = path.split(".")
        walked: Any = sys.modules[top]
        for part in rest:
            walked = getattr(walked, part, None)
        if walked is not module:
            found = None
        if not isinstance(found, type) or not self._package(f"{found.__module__}.{name}"):
            raise CheckpointError(
                f"{self.where} has {place}={target}, which is not a class defined in "
                f"{self._package(target)}"
            )
        return found

    def _kinds(self, hint: Any) -> tuple[type, ...]:
        """Classes of gpx and of trusted packages that a type hint names."""
        parts = [kind for part in typing.get_args(hint) for kind in self._kinds(part)]
        hint = typing.get_origin(hint) or hint
        # a network may be any module: its class must be of an accepted package all the same
        network = hint is torch.nn.Module
        known = isinstance(hint, type) and self._package(f"{hint.__module__}.{hint.__name__}")
        if network or known:
            parts.append(hint)
        return tuple(parts)


def _algorithms(node: Any, place: str) -> Iterator[tuple[str, str]]:
    """Place and name of every optimiser of torch that is named by its class.

    Short names such as adam have no dot, and nothing is imported for them. ``groups`` of a class
    that is not of gpx, and no part of the run's optimiser, may be anything.
    """
    own = isinstance(node, Mapping) and not str(node.get("_target_")).startswith("gpx.")
    training = f"{place}.".startswith(".optimizer.")
    known = isinstance(node, Mapping) and (not own or training)
    groups = node.get("groups") if known else None
    for role, setting in groups.items() if isinstance(groups, Mapping) else ():
        name = setting.get("algorithm") if isinstance(setting, Mapping) else None
        if isinstance(name, str) and "." in name:
            yield f"{place}.groups.{role}.algorithm".lstrip("."), name
    for key, value in _children(node):
        yield from _algorithms(value, f"{place}.{key}")


def _is_module(path: str) -> bool:
    """Whether there is a module of that name, without importing it."""
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
    except (NameError, TypeError, AttributeError):  # hints that only the type checker can resolve
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
