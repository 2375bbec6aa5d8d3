"""Nodes of several choices, of which the likelihood takes one: a new likelihood needs no config.

A node like ``configs/objective/qsgp_by_likelihood.yaml`` has under ``choices`` the nodes of several
classes, and beside it the options of all of them. The first class whose ``likelihoods`` take the
likelihood of the run is what the node stands for.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.errors import ConfigError
from gpx.likelihoods import Likelihood
from gpx.options.build import target_of

GROUPS = ("objective", "optimizer")
"""Nodes that may have choices."""


def with_choices_made(config: DictConfig) -> DictConfig:
    """A copy of a composed config in which nodes of several choices are the one that fits.

    Options that are null leave the chosen node as it is. A choice that is a whole config
    (``@package _global_``) fills its other nodes, too.

    Raises:
        ConfigError: an option of another choice than the one that fits is set, or a class that
            cannot be found.
    """
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    node = config.get("likelihood")
    likelihood = target_of(node, "likelihood") if isinstance(node, DictConfig) else None
    for group in GROUPS:
        if isinstance(content.get(group), dict) and "choices" in content[group]:
            _choose(content, group, likelihood)
    made = OmegaConf.create(content)
    assert isinstance(made, DictConfig)
    return made


def _choose(content: dict[Any, Any], group: str, likelihood: Any) -> None:
    """Put the choice that takes ``likelihood`` in the place of the node ``group``; the last one
    where none does, which then says so itself."""
    node = dict(content[group])
    for choice in node.pop("choices").values():
        own = choice if "_target_" in choice else choice[group]
        target = target_of(OmegaConf.create(own), group)
        taken = getattr(target, "likelihoods", (Likelihood,))
        if isinstance(likelihood, type) and issubclass(likelihood, taken):
            break
    given = _set(node)
    for name in given:
        if name not in own:
            whose = getattr(likelihood, "__name__", "this")
            raise ConfigError(
                f"{group}.{name} is set, but {target.__name__}, which is what fits a {whose} "
                f"likelihood, has no such option: leave it out, or choose another {group}="
            )
    if choice is not own:
        content |= choice
    content[group] = OmegaConf.to_container(OmegaConf.merge(own, given), resolve=False)


def _set(options: dict[Any, Any]) -> dict[Any, Any]:
    """Options that are not null, at any depth."""
    found = {k: _set(v) if isinstance(v, dict) else v for k, v in options.items()}
    return {k: v for k, v in found.items() if v is not None and v != {}}
