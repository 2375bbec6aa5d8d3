"""Laplace noise: absolute errors instead of squares, robust and log-concave."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.scale_mixture import laplace_variances, scale_mixture
from gpx.tensor_checks import check_at_least


class Laplace(Likelihood):
    """y = f + e, e ~ Laplace(0, scale): log p = -log(2 scale) - |y - f| / scale.

    Args:
        scale: initial mean absolute error, in target units; learned.
        num_nodes: normals in the predictive mixture.

    ``expected_log_prob`` is a closed form; ``predictive`` is a mixture of normals with one mean,
    see ``laplace_variances``.
    """

    log_concave = True
    task = "regression"
    scale: Tensor

    def __init__(self, scale: float = 0.3, num_nodes: int = 100) -> None:
        super().__init__()
        positive_parameter(self, "scale", scale)
        check_at_least(1, num_nodes=num_nodes)
        self.num_nodes = num_nodes

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Laplace log-density at y with location f; (..., n)."""
        scale = self.scale
        return -(2.0 * scale).log() - (y - f).abs() / scale

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """-log(2b) - E|y - f| / b, with s the standard deviation and delta = y - mean:

        E|y - f| = s sqrt(2 / pi) exp(-delta^2 / 2 s^2) + delta erf(delta / (s sqrt 2)).

        For s -> 0 this tends to |delta|; variances below the smallest normal number of the dtype
        count as that number, where the two agree to rounding. A folded normal mean.
        """
        delta = y - mean
        tiny = torch.finfo(variance.dtype).tiny
        deviation = variance.clamp_min(tiny).sqrt()
        ratio = (delta / deviation).clamp(-1e4, 1e4)  # both functions are constant beyond
        spread = math.sqrt(2.0 / math.pi) * deviation * torch.exp(-0.5 * ratio.square())
        absolute = spread + delta * torch.erf(ratio * math.sqrt(0.5))
        scale = self.scale
        return -(2.0 * scale).log() - absolute / scale

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.MixtureSameFamily:
        """Mixture of normals, of batch shape (..., n)."""
        return scale_mixture(mean, variance, *laplace_variances(self.scale, self.num_nodes))
