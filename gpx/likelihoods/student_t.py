"""Student-t noise: heavy tails, robust to outliers; not log-concave."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.scale_mixture import scale_mixture, student_variances
from gpx.likelihoods.wide_latent import MAX_SQUARE, LogSquare, is_any

MAX_NARROW = 0.44
"""Up to this variance of f over scale^2 df the Gauss-Hermite sum is within 3e-6 (df + 1) / 2."""

NUM_COMPONENTS = 100
"""Components of the predictive mixture: densities within 1e-6 from 3 degrees of freedom on."""


class StudentT(Likelihood):
    """y = f + scale * t with t Student-t of ``df`` degrees of freedom.

    Args:
        scale: initial scale of the noise, in target units; learned.
        df: initial degrees of freedom; learned, above 2 so that the variance exists.
        num_nodes: quadrature nodes of the expectations where the noise is wider than f.

    Expectations are Gauss-Hermite sums, or where f is wider integrals of ``LogSquare``, within
    1e-5 (df + 1) / 2 however small the scale is; ``predictive`` is a mixture of normals with one
    mean, see ``student_variances``.
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
        self.log_square, self.far_log_square = LogSquare(), LogSquare(far=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "log_square" not in self._modules:  # of earlier versions
            device = self.quadrature.nodes.device
            self.log_square = LogSquare().to(device)
            self.far_log_square = LogSquare(far=True).to(device)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Student-t log-density at y with location f; (..., n)."""
        constant, half, unit = self._parts()
        return constant - half * torch.log1p(((y - f) / unit).square())

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E ``log_prob``, by the rule for the width of f in units of the noise; (..., n)."""
        constant, half, unit = self._parts()
        z, spread = (y - mean) / unit, variance / unit.square()
        wide = spread > MAX_NARROW
        if not is_any(wide):
            return constant - half * self._narrow(z, spread)
        far = wide & (spread + z.square() > MAX_SQUARE)
        found = self.log_square.of(z, spread)
        if is_any(far):
            found = torch.where(far, self.far_log_square.of(z, spread), found)
        if not (wide.is_cpu and bool(wide.all())):
            found = torch.where(wide, found, self._narrow(z, spread.clamp_max(MAX_NARROW)))
        return constant - half * found

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """c, a and u of log p = c - a log(1 + ((y - f) / u)^2), each ()."""
        df = self.df
        half, unit = 0.5 * (df + 1.0), self.scale * df.sqrt()
        constant = half.lgamma() - (0.5 * df).lgamma() - 0.5 * math.log(math.pi) - unit.log()
        return constant, half, unit

    def _narrow(self, z: Tensor, variance: Tensor) -> Tensor:
        return self.quadrature.expectation(lambda at: torch.log1p(at.square()), z, variance)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.MixtureSameFamily:
        """Mixture of ``NUM_COMPONENTS`` normals, of batch shape (..., n)."""
        own = student_variances(self.scale, self.df, NUM_COMPONENTS)
        return scale_mixture(mean, variance, *own)
