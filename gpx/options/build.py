"""Build objects from config nodes; errors name the node."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import hydra.errors
import hydra.utils
from omegaconf import DictConfig, OmegaConf

from gpx.constraints import fix
from gpx.errors import ConfigError, GPXError, OutOfMemory
from gpx.linalg.memory import memory_wanted
from gpx.methods.base.model import Hyperparameters, Model
from gpx.options.given_objects import class_of_given
from gpx.options.names import with_option_names
from gpx.options.tree import leaves
from gpx.options.types import check_option_names, check_option_types


def build(config: DictConfig, group: str, **arguments: Any) -> Any:
    """Instantiate the node ``group`` of a composed config.

    Args:
        config: the composed config.
        group: dotted name of the node; the result is None if it is null.
        arguments: passed to the constructor, in addition to the options of the node.

    Raises:
        ConfigError: the target cannot be imported or rejects its options.
        OutOfMemory: the object does not fit into memory.
        GPXError: raised by the constructor.
    """
    node = OmegaConf.select(config, group)
    if node is None:
        return None
    check_options(node, group)
    try:
        made = hydra.utils.instantiate(node, **arguments)
    except hydra.errors.InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, GPXError):
                cause.args = (with_option_names(str(cause), config, group.split(".")[0]),)
                raise cause from None
            cause = cause.__cause__
        reason = error.__cause__ or error
        wanted = memory_wanted(reason)
        if wanted is not None:
            raise OutOfMemory(_too_large(node, group, wanted)) from error
        raise ConfigError(f"cannot build {group}={node._target_}: {first_line(reason)}") from error
    if group in Hyperparameters._fields:
        fix(made, *(name for part, name in fixed_parameters(config) if part == group))
    return made


def _too_large(node: DictConfig, group: str, wanted: str) -> str:
    """Message for an object that does not fit into memory, with its largest whole number."""
    text = f"{group}={node._target_} does not fit into memory"
    if wanted:
        text += f" (it needed {wanted} more)"
    sizes = [
        (value, name)
        for name, value in leaves(OmegaConf.to_container(node, resolve=True), group)
        if isinstance(value, int) and not name.endswith(("seed", "memory_budget"))
    ]
    if sizes:
        largest, name = max(sizes)
        text += f"; the largest of its sizes is {name}={largest}: lower it"
    return text


def fixed_parameters(config: DictConfig) -> list[tuple[str, str]]:
    """The parameters that ``fixed=`` of a config names: (part, name within it) of each.

    Raises:
        ConfigError: a name that does not begin with kernel, mean or likelihood.
    """
    given = OmegaConf.select(config, "fixed")  # not in configs of early versions
    names = [] if given is None else given if OmegaConf.is_list(given) else [given]
    found = []
    for each in names:
        part, dot, name = str(each).partition(".")
        if part not in Hyperparameters._fields or not dot:
            raise ConfigError(
                f"fixed={each}: expected names of parameters of the kernel, mean or likelihood, "
                "such as fixed=[kernel.period,likelihood.noise_variance]"
            )
        found.append((part, name))
    return found


def first_line(error: BaseException) -> str:
    """First line of an error's message, or the name of its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def check_options(node: DictConfig, group: str) -> None:
    """Check names and types of the options of a node, and of every node among them.

    Args:
        node: has ``_target_``.
        group: dotted name of the node, for messages.

    Raises:
        ConfigError: a class without an option of that name, or a value that it cannot take; a
            ``_target_`` that cannot be imported.
    """
    if class_of_given(node) is not None:
        return
    target = target_of(node, group)
    if target is None:
        raise ConfigError(f"cannot build {group}={node._target_}: nothing has that name")
    check_option_names(node, group, target)
    check_option_types(node, group, target)
    for name, value in node.items():
        if OmegaConf.is_dict(value) and value.get("_target_") is not None:
            check_options(value, f"{group}.{name!s}")


def target_of(node: DictConfig, group: str) -> Any:
    """The class that ``node`` names; None if there is no such class.

    Raises:
        ConfigError: no ``_target_``, none that is a name, or its module cannot be imported.
    """
    target = OmegaConf.select(node, "_target_", default=None)
    if target is None:
        raise ConfigError(f"{group} has no _target_: name its class in {group}._target_")
    if not isinstance(target, str):
        raise ConfigError(f"{group}._target_={target}: expected the name of a class")
    given = class_of_given(node)
    if given is not None:
        return given
    try:
        return pydoc.locate(target)
    except pydoc.ErrorDuringImport as error:
        raise ConfigError(f"cannot import {group}={target}: {error.value!r}") from error


def parts_of(model: Any) -> dict[str, bool]:
    """Which of kernel, mean and likelihood a model takes, and whether it needs each of them.

    Args:
        model: class. For anything else, which ``build`` will refuse, all three are needed.
    """
    if not isinstance(model, type):
        return dict.fromkeys(Hyperparameters._fields, True)
    takes = inspect.signature(model).parameters
    rest = any(option.kind is inspect.Parameter.VAR_KEYWORD for option in takes.values())
    return {
        part: part in takes and takes[part].default is inspect.Parameter.empty
        for part in Hyperparameters._fields
        if part in takes or rest
    }


def check_parts(config: DictConfig) -> dict[str, bool]:
    """``parts_of`` the model of a config; raises ConfigError if a part that it needs is missing."""
    parts = parts_of(target_of(config.approx, "approx"))
    for part, needed in parts.items():
        if needed and config.get(part) is None:
            raise ConfigError(f"{part}= is not chosen, and the model needs it")
    return parts


def build_model(config: DictConfig) -> Model:
    """Build the model of a config with its kernel, mean and likelihood.

    The class of ``approx.basis`` is passed uncalled: the model calls it with its kernel.

    Raises:
        ConfigError: as ``build``, or a part that the model needs is not chosen.
    """
    parts: dict[str, Any] = {part: build(config, part) for part in check_parts(config)}
    for part, name in fixed_parameters(config):
        if parts.get(part) is None:
            raise ConfigError(f"fixed={part}.{name}: this model has no {part}=")
    basis = config.approx.get("basis")
    for part in ("basis", "selector", "family"):
        if isinstance(config.approx.get(part), str):
            value = config.approx[part]
            raise ConfigError(f"approx.{part}={value} is now {part}={value}")
    if OmegaConf.is_config(basis):
        parts["basis"] = build(config, "approx.basis", _partial_=True)
    return build(config, "approx", **parts)
