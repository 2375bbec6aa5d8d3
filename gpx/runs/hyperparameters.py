"""Learned hyperparameters of kernel, mean and likelihood, by name and as text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gpx.constraints import natural_parameters
from gpx.data.hints import some_of
from gpx.kernels import Kernel
from gpx.likelihoods import Likelihood
from gpx.means import Mean
from gpx.methods.base.posterior import Posterior

Hyperparameters = dict[str, NDArray[np.float64]]

MAX_ENTRIES = 8
"""Longer arrays are shown by their range."""
MAX_NAMES = 8
"""Number of hyperparameters that are shown; deep models have more."""


def hyperparameters_of(posterior: nn.Module, likelihood: Likelihood) -> Hyperparameters:
    """Parameters of every kernel and mean of the posterior, and of the likelihood.

    Returns:
        values by dotted name, in units of the standardised inputs and target: shape () for a
        number, (d,) with one entry per input, and a leading axis K if each of K experts has its
        own.
    """
    own = posterior.own_hyperparameters() if isinstance(posterior, Posterior) else None
    if own is not None:
        return {name: value.double().cpu().numpy() for name, value in own.items()}
    found: Hyperparameters = {}
    for path, child in posterior.named_modules():
        if not isinstance(child, (Kernel, Mean)):
            continue
        for name, value in natural_parameters(child).items():
            found[f"{path}.{name}"] = value.double().cpu().numpy()
    for name, value in natural_parameters(likelihood).items():
        found[f"likelihood.{name}"] = value.double().cpu().numpy()
    return found


def shown(hyperparameters: Hyperparameters) -> str:
    """One line of text: numbers, short arrays, and the range of long arrays."""
    texts = [f"{name} {_text(value)}" for name, value in hyperparameters.items() if value.size]
    return some_of(texts, MAX_NAMES)


def _text(value: NDArray[np.float64]) -> str:
    if value.ndim == 0:
        return f"{value:.3g}"
    if value.size > MAX_ENTRIES:
        return f"[{value.size} from {value.min():.3g} to {value.max():.3g}]"
    return "[" + " ".join(f"{entry:.3g}" for entry in value.ravel()) + "]"
