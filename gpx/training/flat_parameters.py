"""Parameters as one vector of float64 on the CPU, as optimisers of SciPy take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


def values_of(parameters: Sequence[nn.Parameter]) -> Tensor:
    """A copy of all entries (P,), in the order of the parameters."""
    return _gathered(parameters)


def gradient_of(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Their gradients (P,); zeros for a parameter that has none."""
    return _gathered(_gradients(parameters))


def value_and_gradient(value: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """A loss () and ``gradient_of`` it (P,), in one transfer where all are on one device."""
    found = _gathered([value, *_gradients(parameters)])
    return found[0], found[1:]


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def _gathered(tensors: Sequence[Tensor]) -> Tensor:
    entries = [tensor.detach().reshape(-1).double() for tensor in tensors]
    if len({each.device for each in entries}) > 1:
        entries = [each.cpu() for each in entries]
    return torch.cat(entries).cpu()


def limits_of(parameters: Sequence[nn.Parameter], lower: Sequence[float] | None) -> np.ndarray:
    """Least value of every entry (P,), given that of each parameter's entries; None: no limits."""
    each = [-np.inf] * len(parameters) if lower is None else lower
    sizes = [parameter.numel() for parameter in parameters]
    return np.repeat(np.asarray(each, dtype=np.float64), sizes)


@torch.no_grad()
def assign(parameters: Sequence[nn.Parameter], point: Tensor) -> None:
    """Give the parameters, where and in what precision they are, the entries of ``point`` (P,)."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values in zip(parameters, point.split(sizes), strict=True):
        parameter.copy_(values.view_as(parameter))
