"""Lengthscales that grow with the number of inputs."""

from __future__ import annotations

import math

import torch
from torch import nn

from gpx.priors.base import Prior
from gpx.priors.densities import LogNormal
from gpx.priors.named import Priors
from gpx.tensor_checks import check_at_least


class DimensionScaled(Priors):
    """A log-normal prior of lengthscales that grows with the number of inputs, and one of noise.

    For d inputs in the unit cube log lengthscale ~ N(sqrt(2) + log(d) / 2, 3): distances grow as
    sqrt(d), and so do the lengthscales, so that the smoothness of prior functions does not depend
    on d. gpx standardises inputs to unit variance, at which a uniform input has width sqrt(12), so
    lengthscales here are longer by this factor. log noise variance ~ N(-4, 1), for targets of unit
    variance, if the likelihood has a noise variance.

    In a part of the kernel with ``active_dims`` d is their number, and in a product, whose factors
    multiply, that of all its factors together. Lengthscales without the unit of inputs
    (``Periodic``, ``Categorical``) have no prior.

    Args:
        num_inputs: d.

    Source: Hvarfner, Hellsten and Nardi 2024, as in the defaults of BoTorch.
    """

    optional = ("noise_variance",)

    def __init__(self, num_inputs: int) -> None:
        check_at_least(1, num_inputs=num_inputs)
        median = math.exp(math.sqrt(2.0)) * math.sqrt(12.0 * num_inputs)
        super().__init__(
            {
                "lengthscale": LogNormal(median, math.exp(math.sqrt(3.0))),
                "noise_variance": LogNormal(math.exp(-4.0), math.e),
            }
        )
        self.num_inputs = num_inputs

    def _prior(self, name: str, model: nn.Module, full: str) -> Prior | None:
        prior = self.parameters[name]
        if name != "lengthscale" or not isinstance(prior, LogNormal):
            return prior
        count = inputs_of_lengthscale(model, full, self.num_inputs)
        if count is None:
            return None
        return LogNormal(prior.median * math.sqrt(count / self.num_inputs), prior.factor)


def inputs_of_lengthscale(model: nn.Module, full: str, num_inputs: int) -> int | None:
    """How many inputs a distance is measured in that this lengthscale divides.

    In a part of the kernel with ``active_dims`` it is their number, and in a product, whose factors
    multiply, that of all its factors together.

    Args:
        full: dotted name of the lengthscale in the model.
        num_inputs: of the data.

    None where it has not the unit of inputs (``Periodic``, ``Categorical``).
    """
    part, count, product = model, num_inputs, False
    for step in full.split(".")[:-1]:
        part = part.get_submodule(step)
        active = getattr(part, "active_dims", None)
        if not product:
            count = count if active is None else len(active)
        if not product and getattr(part, "multiplies", False):
            count, product = _num_columns(part, count), True
    return count if getattr(part, "lengthscale_in_unit_of_x", True) else None


def _num_columns(product: nn.Module, count: int) -> int:
    """Columns of the factors with a lengthscale in the unit of inputs; ``count``: of all."""
    columns: set[int] = set()
    for part in product.modules():
        unit = getattr(part, "lengthscale_in_unit_of_x", False)  # kernels only
        if not unit or getattr(part, "lengthscale", None) is None:
            continue
        active = getattr(part, "active_dims", None)
        if not isinstance(active, torch.Tensor):
            return count
        columns.update(active.tolist())
    return len(columns) or count
