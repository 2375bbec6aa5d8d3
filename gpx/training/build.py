"""From config nodes to objects; errors say which node."""

from __future__ import annotations

import pydoc
from typing import Any

import hydra.errors
import hydra.utils
from omegaconf import DictConfig, OmegaConf

from gpx.errors import ConfigError, GPXError
from gpx.methods.base.model import Model
from gpx.training.option_types import check_option_names, check_option_types


def build(config: DictConfig, group: str, **arguments: Any) -> Any:
    """Instantiate the node ``group`` of a composed config.

    Args:
        config: the composed config.
        group: dotted name of the node; null gives None.
        arguments: passed to the constructor beside the node's own options.

    Raises:
        ConfigError: the target cannot be imported or rejects its options.
        GPXError: whatever the constructor raises on purpose.
    """
    node = OmegaConf.select(config, group)
    if node is None:
        return None
    target = OmegaConf.select(node, "_target_", default=None)
    built = target_of(node, group)
    check_option_names(node, group, built)
    check_option_types(node, group, built)
    try:
        return hydra.utils.instantiate(node, **arguments)
    except hydra.errors.InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, GPXError):
                raise cause from None
            cause = cause.__cause__
        first = str(error.__cause__ or error).strip().splitlines()[0]
        raise ConfigError(f"cannot build {group}={target}: {first}") from error


def target_of(node: DictConfig, group: str) -> Any:
    """The class that ``node`` names; None where there is none of that name.

    Raises:
        ConfigError: no ``_target_``, or its module cannot be imported.
    """
    target = OmegaConf.select(node, "_target_", default=None)
    if target is None:
        raise ConfigError(f"{group} has no _target_: name its class there")
    try:
        return pydoc.locate(target)
    except pydoc.ErrorDuringImport as error:
        raise ConfigError(f"cannot import {group}={target}: {error.value!r}") from error


def build_model(config: DictConfig) -> Model:
    """Kernel, mean and likelihood, and the approximation that holds them.

    The class of ``approx.basis`` is left for the model to call, with its kernel.
    """
    parts: dict[str, Any] = {name: build(config, name) for name in ("kernel", "mean", "likelihood")}
    basis = config.approx.get("basis")
    if isinstance(basis, str):
        raise ConfigError(f"approx.basis={basis} is now basis={basis}")
    if OmegaConf.is_config(basis):
        parts["basis"] = build(config, "approx.basis", _partial_=True)
    return build(config, "approx", **parts)
