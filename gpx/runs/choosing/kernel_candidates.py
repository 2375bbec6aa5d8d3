"""The kernels that ``kernel=auto`` compares first, by the data that they are for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress

from omegaconf import DictConfig

from gpx.errors import GPXError
from gpx.options.build import build_model
from gpx.runs.choosing.additive_kernels import JOINT
from gpx.runs.choosing.kernel_fit import Node
from gpx.runs.choosing.method_choice import EXACT_ROWS

SIMPLE = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
"""Candidates, and the only ones for a single input."""
SUMS = ("rbf + matern12", "matern52 + matern12", "matern52(ard_num_dims=null) + matern12")
"""Further candidates for several inputs: smooth in some inputs and rough in others."""
PLANE = "linear(ard_num_dims=null)"
"""A candidate where all rows are compared, as some of them may not show what bends a function, and
without priors, which are of lengthscales."""
MANY_VARIANCES = ("rbf + linear", JOINT)
"""No candidates under a prior: they have a variance for every input, and it is of lengthscales."""
NONLOCAL = ("rbf(ard_num_dims=null) + linear(ard_num_dims=null)", *MANY_VARIANCES)
"""Further candidates for few rows, where the method does not need correlations to fall to zero with
distance; the last for up to ``MAX_SUMMED_INPUTS`` inputs."""
MAX_SUMMED_INPUTS = 20
"""With more inputs, sums over all inputs are not tried."""
FACTORING = ("rbf", "product_matern12", "product_matern32", "product_matern52")
"""Candidates for grids, where the kernel must factor over the inputs."""


def candidates_for(num_train: int, num_inputs: int, plane: bool = True) -> tuple[str, ...]:
    """Names of the kernels that are compared by default; ``plane``: whether ``PLANE`` may be."""
    if num_inputs == 1:
        return SIMPLE
    found = (*SIMPLE, *SUMS)
    if num_train > EXACT_ROWS["cpu"]:
        return found
    further = NONLOCAL if num_inputs <= MAX_SUMMED_INPUTS else NONLOCAL[:-1]
    return (*found, *further, *([PLANE] if plane else []))


def taken_by_method(nodes: Mapping[str, Node], config: DictConfig) -> tuple[str, ...]:
    """The kernels that the method of the run takes; all if it is not chosen yet, or takes none."""
    if config.approx.get("_target_") is None:
        return tuple(nodes)
    trial, taken = copy.deepcopy(config), []
    for name, node in nodes.items():
        trial.kernel = node
        with suppress(GPXError):  # those of other options are raised again when the run is built
            build_model(trial)
            taken.append(name)
    return tuple(taken or nodes)
