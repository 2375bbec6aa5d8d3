"""Student-t noise: heavy tails, robust to outliers; not log-concave."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.scale_mixture import scale_mixture, student_variances

NUM_COMPONENTS = 100
"""Components of the predictive mixture: densities within 1e-6 from 3 degrees of freedom on."""


class StudentT(Likelihood):
    """y = f + scale * t with t Student-t of ``df`` degrees of freedom.

    Args:
        scale: initial scale of the noise, in target units; learned.
        df: initial degrees of freedom; learned, above 2 so that the variance exists.
        num_nodes: quadrature nodes of the expectations.

    Expectations are Gauss-Hermite sums; ``predictive`` is a mixture of normals with one mean, see
    ``student_variances``.
    """

    log_concave = False
    task = "regression"
    scale: Tensor
    df: Tensor

    def __init__(self, scale: float = 0.3, df: float = 4.0, num_nodes: int = 20) -> None:
        super().__init__()
        positive_parameter(self, "scale", scale)
        positive_parameter(self, "df", df, floor=2.0)
        self.quadrature = GaussHermite(num_nodes)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Student-t log-density at y with location f; (..., n)."""
        scale, df = self.scale, self.df
        half = 0.5 * (df + 1.0)
        constant = half.lgamma() - (0.5 * df).lgamma() - 0.5 * (math.pi * df).log() - scale.log()
        return constant - half * torch.log1p(((y - f) / scale).square() / df)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Gauss-Hermite sum of ``log_prob``; (n,)."""
        return self.quadrature.expectation(lambda f: self.log_prob(y, f), mean, variance)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.MixtureSameFamily:
        """Mixture of ``NUM_COMPONENTS`` normals, of batch shape (..., n)."""
        own = student_variances(self.scale, self.df, NUM_COMPONENTS)
        return scale_mixture(mean, variance, *own)
