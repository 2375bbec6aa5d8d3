"""The prior under which ``kernel=auto`` fits kernels of classes and of many inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.data import Dataset
from gpx.methods.classification.model import DenseGP
from gpx.models import ExactGP
from gpx.options.build import target_of

PRIOR = {
    "_target_": "gpx.priors.DimensionScaled",
    "num_inputs": "${facts.num_inputs}",
}
"""Prior of hyperparameters of classes, and of many inputs, of which the most probable ones without
a prior are often extreme (``docs/methods/auto.md``); used where none is chosen, and kept by the
run."""
MANY_INPUTS, ROWS_PER_INPUT = 50, 10
"""From so many inputs on, and up to so many rows for each, lengthscales of the highest evidence
over-fit (``experiments/auto/many_inputs.py``)."""


def has_many_inputs(data: Dataset) -> bool:
    """Whether the data have one target, many inputs, and few rows for each of these."""
    few = data.num_train <= ROWS_PER_INPUT * data.num_inputs
    return few and data.num_inputs >= MANY_INPUTS and data.num_outputs == 1


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
    dense = isinstance(model, type) and issubclass(model, (DenseGP, ExactGP))
    similar = dense or getattr(model, "starts_by_laplace", False)
    return bool(similar and getattr(optimizer, "takes_priors", False))
