"""Lengthscales that are too short for the steps between the values of an input."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.constraints import positive_parameters
from gpx.kernels.stationary import Stationary
from gpx.kernels.structure import leaves
from gpx.models import IndependentGP, Model
from gpx.training.maximise import Say

STEP_IN_LENGTHSCALES = 5.0
"""Distance over lengthscale at which two values of an input count as uncorrelated."""


@torch.no_grad()
def lengthen_below_steps(model: Model, x: Tensor, say: Say) -> None:
    """Raise lengthscales that are below a fifth of the smallest step between an input's values.

    Values of 0 and 1 are all but uncorrelated at a lengthscale of 0.2 already (an RBF kernel:
    4e-6), so that a fit is indifferent to any shorter one. With a lengthscale of 1e-5, however,
    distances between rows are lost to rounding in float32, and an inducing point that moves off a
    value is correlated with no row. Inputs of many values have small steps, and keep what they
    have, as do lengthscales that are not trained.

    Args:
        model: changed in place, where it has one kernel; within sums, products and multiples the
            stationary kernels with one lengthscale per input are treated.
        x (n, d): training inputs.
        say: takes lines for the user.

    Cost: one sort of the values of each input whose lengthscale is that short for its range.
    """
    if isinstance(model, IndependentGP):
        kernels = [own.kernel for own in model.parts]
    else:
        parts = model.hyperparameters()
        kernels = [] if parts is None else [parts.kernel]
    for kernel in (leaf for each in kernels for leaf in leaves(each)):
        if not (isinstance(kernel, Stationary) and kernel.is_radial):
            continue
        active = kernel.active_dims
        columns = list(range(x.shape[1])) if active is None else active.tolist()
        found = kernel.lengthscale.reshape(-1)
        raw = {c.name: c.raw for c in positive_parameters(kernel, below=False)}
        learned = "lengthscale" in raw and raw["lengthscale"].requires_grad
        if not learned or found.numel() != len(columns):
            continue
        lowest = found.clone()
        for place, column in enumerate(columns):
            values = x[:, column]
            if lowest[place] < (values.max() - values.min()) / STEP_IN_LENGTHSCALES:
                step = values.unique().diff().min() / STEP_IN_LENGTHSCALES
                lowest[place] = torch.maximum(lowest[place], step)
                if lowest[place] > found[place]:
                    say(
                        f"lengthscale of input {column + 1} raised from {found[place]:.2g} to "
                        f"{lowest[place]:.2g}, which keeps its values apart as well"
                    )
        if not torch.equal(lowest, found):
            kernel.lengthscale = lowest.reshape(kernel.lengthscale.shape)
