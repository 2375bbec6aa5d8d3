"""Copies of a kernel for another number of inputs."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, class_name
from gpx.kernels.arc_cosine import ArcCosine
from gpx.kernels.base import Kernel
from gpx.kernels.periodic import Periodic
from gpx.kernels.stationary import Stationary
from gpx.kernels.wendland import Wendland


def for_inputs(kernel: nn.Module, num_inputs: int) -> Kernel:
    """A copy of a kernel for ``num_inputs`` inputs; new lengthscales are the mean of the old ones.

    Lengthscales that are fixed stay fixed. A Wendland kernel of fewer inputs gets the power that
    more of them need.

    Raises:
        ConfigError: the kernel is neither stationary nor arc-cosine, has ``active_dims``, is
            periodic with a period for each of another number of inputs, or is a Wendland kernel
            with an explicit ``max_inputs`` below ``num_inputs``.
    """
    fits = isinstance(kernel, (Stationary, ArcCosine)) and kernel.active_dims is None
    if not fits:
        raise ConfigError(
            f"{num_inputs} inputs take one stationary or arc-cosine kernel of all of them, got "
            f"{class_name(kernel)}; use kernel=RBF(), Matern32() or ArcCosine()"
        )
    made = copy.deepcopy(cast("Stationary | ArcCosine", kernel))
    if made.ard_num_dims is None or made.ard_num_dims == num_inputs:
        return made
    if isinstance(made, Periodic):
        raise ConfigError(
            f"a Periodic kernel has a period for each of its {made.ard_num_dims} inputs, and here "
            f"it gets {num_inputs} others; use kernel=RBF() or Matern32()"
        )
    if isinstance(made, Wendland) and made.max_inputs < num_inputs:
        given = (made.construction() or {}).get("max_inputs")
        if given is not None:
            raise ConfigError(
                f"max_inputs={given} of a Wendland kernel, which here gets {num_inputs} inputs; "
                f"set max_inputs={num_inputs}"
            )
        made.hold_for(num_inputs)
    lengthscale = made.lengthscale.detach()
    constraint: Any = made.parametrizations
    floor = float(constraint.lengthscale[0].floor)
    learned = constraint.lengthscale.original.requires_grad
    parametrize.remove_parametrizations(made, "lengthscale")
    del made.lengthscale
    made.ard_num_dims = num_inputs
    value = torch.full((num_inputs,), float(lengthscale.mean()), dtype=torch.float64)
    positive_parameter(made, "lengthscale", value, floor=floor)
    constraint = made.parametrizations
    constraint.lengthscale.original.requires_grad_(learned)
    return made.to(lengthscale)
