"""The prior under which ``kernel=auto`` fits kernels of classes, and the run its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.methods.classification.model import DenseGP
from gpx.options.build import target_of

PRIOR_OF_CLASSES = {
    "_target_": "gpx.priors.DimensionScaled",
    "num_inputs": "${facts.num_inputs}",
}
"""Prior of hyperparameters of classes, of which the most probable ones without a prior are often
extreme (``docs/methods/auto.md``); used where none is chosen."""


def set_prior(config: DictConfig, node: Mapping[str, Any] | DictConfig | None) -> None:
    """Set ``prior``, which a composed config has only if the user chose one."""
    OmegaConf.update(config, "prior", node, merge=False, force_add=True)


def takes_priors(config: DictConfig) -> bool:
    """Whether method and optimizer of the config take a prior that the kernels were fitted under.

    True if the method is not chosen yet.
    """
    if config.approx.get("_target_") is None:
        return True
    model, optimizer = (target_of(config[part], part) for part in ("approx", "optimizer"))
    dense = isinstance(model, type) and issubclass(model, DenseGP)
    similar = dense or getattr(model, "starts_by_laplace", False)
    return bool(similar and getattr(optimizer, "takes_priors", False))
