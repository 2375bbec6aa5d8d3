"""Parameters and gradients as one float64 vector on the CPU, for SciPy's optimisers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


def values_of(tensors: Sequence[Tensor]) -> Tensor:
    """All entries of parameters or their gradients, in order, as a new vector (P,); P may be 0."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    entries = [tensor.detach().reshape(-1).double() for tensor in tensors]
    if len({each.device for each in entries}) > 1:
        entries = [each.cpu() for each in entries]
    return torch.cat(entries).cpu()


def value_and_gradient(value: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """A loss () and its gradient (P,), copied to the CPU together if all are on one device."""
    gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
    found = values_of([value, *gradients])
    return found[0], found[1:]


def limits_of(parameters: Sequence[nn.Parameter], lower: Sequence[float] | None) -> np.ndarray:
    """Limit of every entry (P,) from one per parameter; None means no lower limits."""
    each = [-np.inf] * len(parameters) if lower is None else lower
    sizes = [parameter.numel() for parameter in parameters]
    return np.repeat(np.asarray(each, dtype=np.float64), sizes)


@torch.no_grad()
def assign(parameters: Sequence[nn.Parameter], point: Tensor) -> None:
    """Copy the entries of ``point`` (P,) into the parameters, in their dtype and device."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values in zip(parameters, point.split(sizes), strict=True):
        parameter.copy_(values.view_as(parameter))
