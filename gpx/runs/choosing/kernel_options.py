"""Options of ``kernel=auto``, and those that need a named kernel."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.errors import ConfigError
from gpx.options.build import fixed_parameters

OPTIONS = ("choose", "candidates", "num_points", "max_evaluations", "rounds")


def kernel_is_open(config: DictConfig) -> bool:
    """Whether a composed config has ``kernel=auto``."""
    node = config.get("kernel")
    return isinstance(node, DictConfig) and node.get("choose") == "auto"


def require_free_kernel(config: DictConfig) -> None:
    """Raise ConfigError for a fixed parameter of a kernel that is not chosen yet."""
    for part, name in fixed_parameters(config):
        if part == "kernel":
            raise ConfigError(
                f"fixed=kernel.{name} is of a certain kernel, and kernel=auto chooses the kernel: "
                "name one, for example kernel=periodic"
            )


def options_of_choice(node: DictConfig) -> dict[str, Any]:
    """The checked options of ``kernel=auto`` in the node ``kernel`` of a config."""
    unknown = [str(name) for name in node if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"kernel.{unknown[0]} is an option of certain kernels, and kernel=auto chooses the "
            "kernel: name one, for example kernel=matern32"
        )
    for name in ("num_points", "max_evaluations"):
        if name == "num_points" and node[name] is None:
            continue
        if not isinstance(node[name], int) or node[name] < 2:
            raise ConfigError(f"kernel.{name}={node[name]}: expected a whole number above 1")
    if type(node.rounds) is not int or node.rounds < 0:  # a bool is refused
        raise ConfigError(f"kernel.rounds={node.rounds}: expected a whole number, 0 or more")
    found: dict[str, Any] = {name: node[name] for name in OPTIONS}
    candidates = node.candidates
    if candidates is None:
        return found
    if not OmegaConf.is_list(candidates) or not len(candidates):
        raise ConfigError(
            f"kernel.candidates={candidates}: expected a list of kernels, such as [rbf,matern32]"
        )
    found["candidates"] = [str(name) for name in candidates]
    return found
