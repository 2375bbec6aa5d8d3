"""Copies of a kernel for another number of inputs."""

from __future__ import annotations

import copy
from typing import Any, cast

from torch import nn

from gpx.constraints import replace_positive
from gpx.errors import ConfigError, class_name
from gpx.kernels.algebra import Product, Scale, Sum
from gpx.kernels.arc_cosine import ArcCosine
from gpx.kernels.base import Kernel
from gpx.kernels.linear import Linear
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.periodic import Periodic
from gpx.kernels.spectral_mixture import SpectralMixture
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
    return _with_one_each(made, "lengthscale", num_inputs)


def resized(kernel: Kernel, num_inputs: int) -> Kernel:
    """A copy for ``num_inputs`` inputs, part by part: ``for_inputs`` of kernels that it takes, a
    slope variance for each input of linear ones, frequencies and widths of spectral mixtures at the
    means over their inputs, and sums, products and multiples of these; kernels of another kind, or
    with ``active_dims``, are copied as they are.

    A kernel that stands in several places is one kernel in the copy, too.

    Raises:
        ConfigError: a part that ``for_inputs`` refuses.
    """
    return _resized(kernel, num_inputs, {})


def _resized(kernel: Kernel, num_inputs: int, known: dict[int, Kernel]) -> Kernel:
    """``resized``; ``known``: copies of parts by the ``id`` of the part."""
    if id(kernel) not in known:
        made: Any
        if isinstance(kernel, (Sum, Product)) and computes_as(kernel, Sum, Product):
            made = copy.deepcopy(kernel)
            made.kernels = nn.ModuleList(_resized(k, num_inputs, known) for k in kernel.parts)
        elif isinstance(kernel, Scale) and computes_as(kernel, Scale):
            made = copy.deepcopy(kernel)
            made.kernel = _resized(kernel.kernel, num_inputs, known)
        elif isinstance(kernel, (Stationary, ArcCosine)) and kernel.active_dims is None:
            made = for_inputs(kernel, num_inputs)
        else:
            made = copy.deepcopy(kernel)
            each = isinstance(made, Linear) and made.active_dims is None
            if each and made.ard_num_dims not in (None, num_inputs):
                made = _with_one_each(made, "slope_variance", num_inputs)
            elif isinstance(made, SpectralMixture) and made.active_dims is None:
                _resize_mixture(made, num_inputs)
        known[id(kernel)] = made
    return known[id(kernel)]


def _resize_mixture(made: SpectralMixture, num_inputs: int) -> None:
    if made.num_inputs == num_inputs:
        return
    for name in ("frequency", "scale"):
        values = getattr(made, name).detach().double()
        each = values.mean(1, keepdim=True).expand(-1, num_inputs)
        replace_positive(made, name, each)
    made.num_inputs = made.ard_num_dims = num_inputs


def _with_one_each(
    made: Stationary | ArcCosine | Linear, name: str, num_inputs: int
) -> Stationary | ArcCosine | Linear:
    """The kernel with its parameter ``name`` for each input, at the mean of the values it had."""
    values = getattr(made, name).detach()
    replace_positive(made, name, values.double().mean().expand(num_inputs))
    made.ard_num_dims = num_inputs
    return made
