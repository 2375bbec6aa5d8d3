"""Config nodes with several choices, one of which is selected by the likelihood.

A node like ``configs/objective/qsgp_by_likelihood.yaml`` holds the nodes of several classes under
``choices``, and beside it the options of all of them. The first class whose ``likelihoods`` include
that of the run is selected.
"""

from __future__ import annotations

import inspect
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.errors import ConfigError
from gpx.likelihoods import Likelihood
from gpx.options.build import target_of
from gpx.options.tree import changed

GROUPS = ("objective", "optimizer")
"""Config groups whose node may have choices."""
OF_ALL_INPUTS = "${facts.num_inputs}"
"""A lengthscale for each input of the data, in configs of kernels."""


def with_choices_made(config: DictConfig) -> DictConfig:
    """A copy of a composed config in which nodes with choices are replaced by the selected one.

    Options beside the choices override those of the selected node unless they are null. A choice
    that is a whole config (``@package _global_``) sets its other nodes, too. The number of inputs
    that a projection gives the kernel goes to the parts of a sum or product.

    Raises:
        ConfigError: an option is set that the selected class does not have, or a class cannot be
            found.
    """
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    node = config.get("likelihood")
    likelihood = target_of(node, "likelihood") if isinstance(node, DictConfig) else None
    for group in GROUPS:
        if isinstance(content.get(group), dict) and "choices" in content[group]:
            _choose(content, group, likelihood)
    kernel = content.get("kernel")
    if isinstance(kernel, dict) and "ard_num_dims" in kernel and "kernels" in kernel:
        target = target_of(OmegaConf.create(kernel), "kernel")
        if target is not None and "ard_num_dims" not in inspect.signature(target).parameters:
            own = kernel.pop("ard_num_dims")

            def projected(option: str, value: Any) -> Any:
                return own if (option, value) == ("ard_num_dims", OF_ALL_INPUTS) else value

            kernel["kernels"] = changed(kernel["kernels"], projected)
    made = OmegaConf.create(content)
    assert isinstance(made, DictConfig)
    return made


def _choose(content: dict[Any, Any], group: str, likelihood: Any) -> None:
    """Replace the node ``group`` by the choice that takes ``likelihood``.

    If none does, the last one is selected; it is refused when it is checked against the model.
    """
    node = dict(content[group])
    for choice in node.pop("choices").values():
        own = choice if "_target_" in choice else choice[group]
        target = target_of(OmegaConf.create(own), group)
        taken = getattr(target, "likelihoods", (Likelihood,))
        if isinstance(likelihood, type) and issubclass(likelihood, taken):
            break
    given = _without_nulls(node)
    for name in given:
        if name not in own:
            whose = getattr(likelihood, "__name__", "this")
            raise ConfigError(
                f"{group}.{name} is set, but {target.__name__}, which is used with a {whose} "
                f"likelihood, has no such option: leave it out, or choose another {group}="
            )
    if choice is not own:
        content |= choice
    content[group] = OmegaConf.to_container(OmegaConf.merge(own, given), resolve=False)


def _without_nulls(options: dict[Any, Any]) -> dict[Any, Any]:
    """The options that are not null, at any depth."""
    found = {k: _without_nulls(v) if isinstance(v, dict) else v for k, v in options.items()}
    return {k: v for k, v in found.items() if v is not None and v != {}}
