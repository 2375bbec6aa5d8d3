"""The config node of a part of a run made in Python: class and arguments.

Before a node is used, the object is built from it again and compared.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hydra.utils
import numpy as np
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from gpx.constraints import fixed_names, named_for_users
from gpx.constructed import PLAIN, Constructed, Unrecorded
from gpx.errors import ConfigError, GPXError, class_name
from gpx.inducing import Selector
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model_checks import EXAMPLE_PARTS
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import Optimizer
from gpx.options.build import first_line
from gpx.options.composition import COMPOSING
from gpx.priors import Prior, Priors

PARTS: dict[str, type] = {
    "kernel": Kernel,
    "mean": Mean,
    "likelihood": Likelihood,
    "selector": Selector,
    "objective": Objective,
    "optimizer": Optimizer,
    "backbone": nn.Module,
    "prior": Priors,
}
"""Parts that may be given as objects, and their base classes."""
PACKAGES = {"selector": "approx.selector"}
"""Where the node of a part stands in a config, if not under its own name."""
EXAMPLES = {
    **EXAMPLE_PARTS,
    "selector": "inducing.KMeans()",
    "objective": "objectives.LeaveOneOut()",
    "optimizer": "training.LBFGSB()",
    "prior": "priors.Priors({'lengthscale': gpx.priors.LogNormal(1.0, 3.0)})",
}
OPTIONS = {"backbone": "approx.backbone"}
"""Parts that are an option rather than a config group."""

UNKNOWN = "what its constructor was given is not known; derive from a class of gpx"
HIDDEN = "an argument of its constructor is no attribute of the same name"
GIVEN = "given"
"""Name of the node as a choice of its group."""

ROUNDING = 1e-6
"""Tolerance in the comparison of unconstrained parameters, which modules hold in single
precision."""


@contextmanager
def chosen_modules(nodes: Mapping[str, dict[str, Any]]) -> Iterator[list[str]]:
    """Inside, nodes of ``node_of`` are choices of their groups; yields the options for them.

    Other threads that compose configs wait until it is left.
    """
    store = ConfigStore.instance()
    with COMPOSING:
        for part, node in nodes.items():
            store.store(group=part, name=GIVEN, node=node, package=PACKAGES.get(part))
        try:
            yield [f"{part}={GIVEN}" for part in nodes]
        finally:
            for part in nodes:
                del store.repo[part][f"{GIVEN}.yaml"]
                if not store.repo[part]:
                    del store.repo[part]


def node_of(module: object, part: str, kept: bool = True) -> dict[str, Any]:
    """The config node of a module or other part: ``_target_`` and every argument of its class.

    The values are those of the constructor, or the current ones if they were assigned since; a
    selector's and those of priors come from their ``construction``. That a parameter is fixed is
    not part of the node: see ``fixed_in``.

    Args:
        module: of the class of the part; modules among its arguments become nodes.
        part: one of ``PARTS``.
        kept: whether another process must be able to build it, from a run folder.

    Raises:
        ConfigError: it is not such an object, or no node can describe it: its class cannot be
            imported, an argument is unknown or not a number, text, list or module, a parameter
            has a value that no argument gives, or a module is used in several places.
    """
    if part == "backbone":
        if not isinstance(module, nn.Module):
            raise ConfigError(f"backbone={class_name(module)} is no module and no text")
        raise ConfigError(
            "backbone: a network with weights cannot be recorded in config.yaml; name its class as "
            "'approx.backbone={_target_: package.Net}'"
        )
    if not isinstance(module, PARTS[part]):
        article = "an" if part[0] == "o" else "a"
        given = f"the class {module.__name__}" if isinstance(module, type) else class_name(module)
        raise ConfigError(
            f"{part}={given} is not {article} {part} of gpx, such as gpx.{EXAMPLES[part]}; a text "
            f"is read as the option {part}="
        )
    reader = _Reader(part, kept)
    if isinstance(module, (Selector, Priors)):
        return reader.arguments(module, module.construction(), HIDDEN)
    if isinstance(module, Optimizer):
        return reader.arguments(module, module.construction(), _why_unknown(type(module)))
    assert isinstance(module, nn.Module)
    return reader.node(module, part)


def fixed_in(module: nn.Module, part: str, node: dict[str, Any]) -> list[str]:
    """Names for ``fixed=`` of the parameters that were fixed since the module was made.

    Args:
        module: kernel, mean or likelihood.
        part: "kernel", "mean" or "likelihood".
        node: of ``node_of``.
    """
    others = named_for_users(hydra.utils.instantiate(OmegaConf.create(node)))
    return [f"{part}.{name}" for name in fixed_names(module) if others[name].requires_grad]


class _Reader:
    """Reads one module; ``part`` and ``kept`` as in ``node_of``."""

    def __init__(self, part: str, kept: bool) -> None:
        self.part, self.kept = part, kept

    def node(self, module: nn.Module, place: str) -> dict[str, Any]:
        """The node of ``module``, which is the argument ``place`` of the part."""
        kind = type_before_parametrizations(module)
        self._require_importable(kind)
        constructed = module.construction() if isinstance(module, Constructed) else None
        if constructed is None:
            raise self._not_recorded(module, _why_unknown(kind))
        refused: ConfigError | None = None
        for given in (constructed, {n: _present(module, n, v) for n, v in constructed.items()}):
            try:
                node = {
                    "_target_": _public_name(kind),
                    **{n: self._value(module, n, v, place) for n, v in given.items()},
                }
                self._require_same(module, node, place)
            except ConfigError as error:
                refused = error
                continue
            return node
        assert refused is not None
        raise refused

    def arguments(self, made: object, given: dict[str, Any] | None, unknown: str) -> dict[str, Any]:
        """The node of an object that is no module.

        Args:
            made: the object.
            given: arguments of its constructor by name; None: they are not known.
            unknown: why they are not, for the message.
        """
        self._require_importable(type(made))
        if given is None:
            raise self._not_recorded(made, unknown)
        node = {
            "_target_": _public_name(type(made)),
            **{n: self._value(made, n, v, self.part) for n, v in given.items()},
        }
        built = self._built(made, node, self.part)
        if isinstance(made, Priors) and not _same_priors(made, built):
            raise self._not_recorded(made, "its priors have been changed since it was made")
        return node

    def _value(self, module: object, name: str, value: Any, place: str) -> Any:
        """An argument as a value that a config can hold."""
        if isinstance(value, (np.generic, np.ndarray)):
            value = value.tolist()  # a config takes no numbers of NumPy
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Tensor):
            return value.detach().cpu().tolist()
        if isinstance(value, (list, tuple, nn.ModuleList)):
            return [
                self._value(module, f"{name}.{i}", entry, place) for i, entry in enumerate(value)
            ]
        if isinstance(value, dict):
            return {k: self._value(module, f"{name}.{k}", v, place) for k, v in value.items()}
        if isinstance(value, nn.Module):
            return self.node(value, f"{place}.{name}")
        if isinstance(value, Prior):
            return self.arguments(value, value.construction(), HIDDEN)
        shown = value if isinstance(value, Unrecorded) else f"a {type(value).__name__}"
        raise self._not_recorded(
            module, f"its {name} is {shown}; a config holds only numbers, texts, lists and modules"
        )

    def _require_importable(self, kind: type) -> None:
        """Raise ConfigError unless another process can import the class."""
        found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
        if found is kind and not (self.kept and kind.__module__ == "__main__"):
            return
        where = "this script or notebook" if kind.__module__ == "__main__" else kind.__module__
        otherwise = ", or leave no folder with keep=False" if found is kind else ""
        raise ConfigError(
            f"{self.part}= uses the class {kind.__qualname__}, which cannot be imported from "
            f"{where} when the run folder is read: define the class at the top level of a file of "
            f"its own and import it{otherwise}"
        )

    def _require_same(self, module: nn.Module, node: dict[str, Any], place: str) -> None:
        """Raise ConfigError unless the node builds an equal module."""
        for difference in _differences(module, self._built(module, node, place)):
            raise self._not_recorded(module, difference)

    def _built(self, module: object, node: dict[str, Any], place: str) -> Any:
        """What the node builds; raises ConfigError if it builds nothing."""
        try:
            return hydra.utils.instantiate(OmegaConf.create(node))
        except (hydra.errors.InstantiationException, GPXError) as error:
            why = first_line(error.__cause__ or error)
            raise self._not_recorded(module, f"building {place} again fails: {why}") from error

    def _not_recorded(self, module: object, why: str) -> ConfigError:
        return ConfigError(
            f"{self.part}: {class_name(module)} cannot be recorded in config.yaml: {why}"
        )


def _why_unknown(kind: type) -> str:
    """Why the arguments of the constructor of an object of that class are not known."""
    made: Any = kind.__init__  # type: ignore[misc]
    if made.__module__.partition(".")[0] == "torch":  # it has no constructor of its own
        return UNKNOWN
    parameters = inspect.signature(made).parameters.values()
    several = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    if several:
        return f"its constructor takes *{several[0]}; name its arguments"
    return UNKNOWN


def _public_name(kind: type) -> str:
    """Name to import a class by: for classes of gpx the public one, such as gpx.kernels.RBF."""
    for window in (".".join(kind.__module__.split(".")[:2]), "gpx.objectives", "gpx.training"):
        if getattr(sys.modules.get(window), kind.__name__, None) is kind:
            return f"{window}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__name__}"


def _present(module: nn.Module, name: str, value: Any) -> Any:
    """The current value of an argument, if the module has it as a tensor or module."""
    found = getattr(module, name, None)
    return found if isinstance(found, (Tensor, nn.Module)) else value


def _plain(value: Any) -> bool:
    """Whether a value is plain, or a list of plain values."""
    if isinstance(value, (list, tuple)):
        return all(_plain(entry) for entry in value)
    return isinstance(value, PLAIN)


def _same_priors(first: Priors, second: Priors) -> bool:
    """Whether both have the same priors, as far as their plain arguments say."""

    def described(priors: Priors) -> dict[str, Any]:
        given = {name: (type(p), p.construction() or {}) for name, p in priors.parameters.items()}
        return {
            name: (kind, {n: v for n, v in arguments.items() if _plain(v)})
            for name, (kind, arguments) in given.items()
        }

    return described(first) == described(second)


def _differences(module: nn.Module, built: nn.Module) -> Iterator[str]:
    """Differences between a module and the one built from its node, as text."""
    parts, rebuilt = dict(module.named_modules()), dict(built.named_modules())
    if parts.keys() != rebuilt.keys():
        changed = sorted(parts.keys() ^ rebuilt.keys())
        yield (
            f"it has other submodules than its arguments give ({', '.join(changed)}), or uses one "
            "module in several places"
        )
        return
    for place, part in parts.items():
        kinds = [type_before_parametrizations(m) for m in (part, rebuilt[place])]
        if kinds[0] is not kinds[1]:
            yield f"its {place} has been changed to a {kinds[0].__name__}"
            return
        own, other = vars(part), vars(rebuilt[place])
        for name, value in own.items():
            hidden = name == "training" or name.startswith("_")
            if not hidden and _plain(value) and value != other.get(name):
                yield f"its {f'{place}.{name}'.lstrip('.')} has been changed to {value!r}"
    numbers = dict(module.named_parameters()) | dict(module.named_buffers())
    others = dict(built.named_parameters()) | dict(built.named_buffers())
    if numbers.keys() != others.keys():
        yield "it has other parameters than its arguments give"
        return
    for name, number in numbers.items():
        shown = name.replace("parametrizations.", "").removesuffix(".original")
        if number.requires_grad and not others[name].requires_grad:
            yield f"its {shown} is trained, which no argument can say"
        first, second = number.detach().cpu().double(), others[name].detach().double()
        same = first.shape == second.shape
        if not same or not torch.allclose(first, second, rtol=10.0 * ROUNDING, atol=ROUNDING):
            yield f"no argument gives its {shown} the current values"
