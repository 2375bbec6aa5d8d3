"""Gauss-Hermite quadrature: expectations under a normal distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from gpx.errors import ConfigError


class GaussHermite(nn.Module):
    """E h(f) for f ~ N(mean, variance) as a weighted sum over fixed nodes.

    Exact for polynomials up to degree 2 num_nodes - 1; for smooth h the error falls faster than
    any power of num_nodes, but it grows when h varies over a scale much shorter than the standard
    deviation of f.

    Args:
        num_nodes: Q, at least one; 20 suffices for likelihoods near unit scale.

    Attributes:
        nodes (Q,): roots in units of the standard deviation, float64.
        weights (Q,): sum to one, float64.
    """

    nodes: Tensor
    weights: Tensor

    def __init__(self, num_nodes: int = 20) -> None:
        super().__init__()
        if num_nodes < 1:
            raise ConfigError(f"num_nodes={num_nodes} must be at least 1")
        nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
        self.register_buffer("nodes", torch.from_numpy(nodes), persistent=False)
        self.register_buffer("weights", torch.from_numpy(weights / weights.sum()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GaussHermite:
        """Follow the module to another device, but keep the nodes in float64 through casts."""
        nodes, weights = self.nodes, self.weights
        super()._apply(fn, recurse)
        self.nodes = nodes.to(self.nodes.device)
        self.weights = weights.to(self.weights.device)
        return self

    def points(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Values of f at the nodes: (n, ...) -> (Q, n, ...).

        Variances below the rounding unit of the dtype count as that unit, so that the gradient of
        the square root stays finite at zero.
        """
        scale = variance.clamp_min(torch.finfo(variance.dtype).eps).sqrt()
        nodes = self.nodes.to(mean.dtype).view(-1, *(1 for _ in mean.shape))
        return mean + scale * nodes

    def average(self, values: Tensor) -> Tensor:
        """Weighted sum over the leading dimension: (Q, ...) -> (...)."""
        return torch.tensordot(self.weights.to(values.dtype), values, dims=1)

    def expectation(
        self, function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor
    ) -> Tensor:
        """E function(f), elementwise: function maps (Q, n) to (Q, n); result (n,).

        Cost: Q evaluations per element.
        """
        return self.average(function(self.points(mean, variance)))

    def mixture(
        self,
        law: Callable[[Tensor], torch.distributions.Distribution],
        mean: Tensor,
        variance: Tensor,
    ) -> torch.distributions.MixtureSameFamily:
        """Mixture of ``law(f)`` over the nodes f (n, Q) of every element of mean and variance."""
        component = law(self.points(mean, variance).movedim(0, -1))
        weights = self.weights.to(component.mean.dtype).expand(component.batch_shape)
        return torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(probs=weights), component
        )
