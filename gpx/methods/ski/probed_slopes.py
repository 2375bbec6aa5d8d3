"""The gradient of log |A| for each probe, with their mean and standard error."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.methods.ski.gradients import carried_gradient, probed_gradients
from gpx.methods.ski.system import SKISystem


class ProbedSlopes:
    """Gradient of log |A| by ``system.tensors``, and its standard error by the hyperparameters.

    Args:
        system: A; the error does not include the gradient by a projection.
        parameters: of kernel and noise, as they are optimised.

    Cost: as ``logdet_gradient``, and for each probe a backward pass through the kernel's values at
    the lags of the grid.
    """

    def __init__(self, system: SKISystem, parameters: Sequence[Tensor]) -> None:
        self.system = system
        self._parameters = [p for p in parameters if p.requires_grad]
        self._carried = carried_gradient(system)
        self._sums = [torch.zeros_like(slope) for slope in self._carried]
        self._exact = self._by_parameter(self._carried)
        self._samples: list[Tensor] = []

    def add(self, u: Tensor, z: Tensor) -> None:
        """Add probes w, given as A^{-1} w and Q^{-1} w (n, L)."""
        for slopes in probed_gradients(self.system, u, z):
            torch._foreach_add_(self._sums, slopes)
            self._samples.append(self._by_parameter(slopes))

    def mean(self) -> list[Tensor]:
        """The gradient by ``system.tensors``."""
        count = len(self._samples)
        return [c + total / count for c, total in zip(self._carried, self._sums, strict=True)]

    def error(self) -> tuple[float, float]:
        """Euclidean norms of the standard error, and of the gradient, by the hyperparameters."""
        samples = torch.stack(self._samples)  # (L, p)
        errors = samples.std(0) / len(samples) ** 0.5
        error, size = torch.stack([errors.norm(), (self._exact + samples.mean(0)).norm()]).tolist()
        return error, size

    def _by_parameter(self, slopes: Sequence[Tensor]) -> Tensor:
        """Gradient by the hyperparameters (p,) from that by the covariance's tensors and noise."""
        given = [*self.system.covariance.tensors, self.system.noise]
        pairs = [pair for pair in zip(given, slopes, strict=False) if pair[0].requires_grad]
        found = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            self._parameters,
            [slope.reshape(tensor.shape) for tensor, slope in pairs],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([slope.detach().double().flatten() for slope in found])
