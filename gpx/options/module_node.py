"""The config of a kernel, mean or likelihood that was made in Python: its class and its arguments.

What ``build`` makes of the node is the module again, which is tried before the node is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hydra.utils
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from gpx.constructed import PLAIN, Constructed, Unrecorded
from gpx.errors import ConfigError, GPXError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model import EXAMPLE_PARTS

PARTS: dict[str, type[Constructed]] = {"kernel": Kernel, "mean": Mean, "likelihood": Likelihood}
"""What may be given as a module, and of which class it must be."""

GIVEN = "given"
"""Name of the choice that a node becomes in its group."""

ROUNDING = 1e-6
"""Difference of unconstrained numbers that are the same: a module holds single precision, and a
logarithm of what is positive, until it is converted."""


@contextmanager
def chosen_modules(nodes: Mapping[str, dict[str, Any]]) -> Iterator[list[str]]:
    """The options that choose nodes of ``node_of``, by part, for compositions inside.

    Afterwards nothing can choose them: what one call was given is no option of the next.
    """
    store = ConfigStore.instance()
    for part, node in nodes.items():
        store.store(group=part, name=GIVEN, node=node)
    try:
        yield [f"{part}={GIVEN}" for part in nodes]
    finally:
        for part in nodes:
            del store.repo[part][f"{GIVEN}.yaml"]
            if not store.repo[part]:
                del store.repo[part]


def node_of(module: object, part: str, kept: bool = True) -> dict[str, Any]:
    """The config node of a module: ``_target_`` and every argument of its class.

    The values are those that it was constructed with, or those that it has now where these were
    assigned since.

    Args:
        module: a kernel, mean or likelihood; modules among its arguments become nodes of their own.
        part: "kernel", "mean" or "likelihood".
        kept: whether another process is to build it, too, from a run folder.

    Raises:
        ConfigError: it is none, or no node says what it is: its class cannot be imported, an
            argument is no number, text, list or module, a parameter is fixed or was set to what no
            argument gives, or one module stands in several places.
    """
    if not isinstance(module, PARTS[part]):
        given = f"the class {module.__name__}" if isinstance(module, type) else class_name(module)
        raise ConfigError(
            f"{part}={given} is no {part} of gpx, such as gpx.{EXAMPLE_PARTS[part]}; a text is "
            f"read as the option {part}= is"
        )
    return _Reader(part, kept).node(module, part)


class _Reader:
    """Reads one module; ``part`` and ``kept`` are those of ``node_of``."""

    def __init__(self, part: str, kept: bool) -> None:
        self.part, self.kept = part, kept

    def node(self, module: nn.Module, place: str) -> dict[str, Any]:
        """The node of ``module``, which stands at ``place`` and is rebuilt from it."""
        kind = type_before_parametrizations(module)
        self._require_importable(kind)
        constructed = module.construction() if isinstance(module, Constructed) else None
        if constructed is None:
            raise self._not_recorded(
                module, "what its constructor was given is not known; derive from a class of gpx"
            )
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

    def _value(self, module: nn.Module, name: str, value: Any, place: str) -> Any:
        """An argument as a config holds it."""
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
        shown = value if isinstance(value, Unrecorded) else f"a {type(value).__name__}"
        raise self._not_recorded(
            module, f"its {name} is {shown}, and a config holds numbers, texts, lists and modules"
        )

    def _require_importable(self, kind: type) -> None:
        """Raise ConfigError unless another process finds the class by its name."""
        found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
        if found is kind and not (self.kept and kind.__module__ == "__main__"):
            return
        where = "this script or notebook" if kind.__module__ == "__main__" else kind.__module__
        otherwise = ", or leave no folder with keep=False" if found is kind else ""
        raise ConfigError(
            f"{self.part}= is made of {kind.__qualname__}, which cannot be imported from {where} "
            f"when the run folder is read: write the class at the top of a file of its own and "
            f"import it{otherwise}"
        )

    def _require_same(self, module: nn.Module, node: dict[str, Any], place: str) -> None:
        """Raise ConfigError unless what the node builds is the module again."""
        try:
            built = hydra.utils.instantiate(OmegaConf.create(node))
        except (hydra.errors.InstantiationException, GPXError) as error:
            first = str(error.__cause__ or error).strip().splitlines()[0]
            raise self._not_recorded(module, f"built again at {place} it fails: {first}") from error
        for difference in _differences(module, built):
            raise self._not_recorded(module, difference)

    def _not_recorded(self, module: nn.Module, why: str) -> ConfigError:
        return ConfigError(f"{self.part}: {class_name(module)} cannot be recorded in a run: {why}")


def _public_name(kind: type) -> str:
    """Where a class is imported from: for one of gpx its shop window, which stays where it is."""
    window = ".".join(kind.__module__.split(".")[:2])
    shown = getattr(sys.modules.get(window), kind.__name__, None) is kind
    return f"{window if shown else kind.__module__}.{kind.__name__}"


def _present(module: nn.Module, name: str, value: Any) -> Any:
    """What the module has under the name of an argument, where that is numbers or modules."""
    found = getattr(module, name, None)
    return found if isinstance(found, (Tensor, nn.Module)) else value


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(entry) for entry in value)
    return isinstance(value, PLAIN)


def _differences(module: nn.Module, built: nn.Module) -> Iterator[str]:
    """How a module differs from the one that was built from its node; nothing where it does not."""
    parts, rebuilt = dict(module.named_modules()), dict(built.named_modules())
    if parts.keys() != rebuilt.keys():
        changed = sorted(parts.keys() ^ rebuilt.keys())
        yield (
            f"it has other parts than its arguments make ({', '.join(changed)}), or one module in "
            "several places"
        )
        return
    for place, part in parts.items():
        kinds = [type_before_parametrizations(m) for m in (part, rebuilt[place])]
        if kinds[0] is not kinds[1]:
            yield f"its {place} is a {kinds[0].__name__} by now"
            return
        own, other = vars(part), vars(rebuilt[place])
        for name, value in own.items():
            hidden = name == "training" or name.startswith("_")
            if not hidden and _plain(value) and value != other.get(name):
                yield f"its {f'{place}.{name}'.lstrip('.')} is {value!r} by now"
    numbers = dict(module.named_parameters()) | dict(module.named_buffers())
    others = dict(built.named_parameters()) | dict(built.named_buffers())
    if numbers.keys() != others.keys():
        yield "it has other parameters than its arguments make"
        return
    for name, number in numbers.items():
        shown = name.replace("parametrizations.", "").removesuffix(".original")
        if number.requires_grad != others[name].requires_grad:
            yield (
                f"its {shown} is fixed, which no argument says (outputscale=None fixes that to one)"
            )
        first, second = number.detach().cpu().double(), others[name].detach().double()
        same = first.shape == second.shape
        if not same or not torch.allclose(first, second, rtol=10.0 * ROUNDING, atol=ROUNDING):
            yield f"no argument gives its {shown} the values that it has"
