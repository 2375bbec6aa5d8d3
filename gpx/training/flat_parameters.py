"""Parameters as one vector of float64 on the CPU, as optimisers of SciPy take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


def values_of(parameters: Sequence[nn.Parameter]) -> Tensor:
    """A copy of all entries (P,), in the order of the parameters."""
    return torch.cat([p.detach().reshape(-1).to("cpu", torch.float64) for p in parameters])


def gradient_of(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Their gradients (P,); zeros for a parameter that has none."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([g.detach().reshape(-1).to("cpu", torch.float64) for g in gradients])


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
