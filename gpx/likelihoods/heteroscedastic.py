"""Gaussian noise whose log variance is a second latent function of the inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.constraints import FLOOR, positive_parameter
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.latent_integral import log_expectation
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.scale_mixture import scale_mixture
from gpx.likelihoods.smooth_mixture import ExactMixture


class Heteroscedastic(Likelihood):
    """y = f + e, e ~ N(0, noise_variance exp(spread g)), with latent functions f and g.

    Both share the model's kernel and mean function, so that the noise varies over the same
    lengthscales as f; its average variance and ``spread`` are learned here. ``expected_log_prob``
    is a closed form. The density is not log-concave in f and g together.

    Args:
        noise_variance: initial variance of the noise where g is 0, in squared target units;
            learned.
        spread: initial factor of g in the log noise variance, no unit; learned.
        num_nodes: normals in the predictive mixture.

    Sources: Lazaro-Gredilla and Titsias 2011; Saul et al. 2016, for inducing points.
    """

    log_concave = False
    task = "regression"
    num_latents = 2
    noise_variance: Tensor
    spread: Tensor

    def __init__(
        self, noise_variance: float = 0.1, spread: float = 1.0, num_nodes: int = 20
    ) -> None:
        super().__init__()
        positive_parameter(self, "noise_variance", noise_variance)
        positive_parameter(self, "spread", spread)
        self.quadrature = GaussHermite(num_nodes)

    def output(self, place: int) -> Gaussian:
        """A Gaussian likelihood with the noise variance at g = 0."""
        noise = self.noise_variance.detach()
        return Gaussian(float(noise), FLOOR).to(noise)

    @torch.no_grad()
    def start_at(self, noise_variance: float) -> None:
        """Set the noise variance at g = 0, at least to twice its floor."""
        here = self.noise_variance
        self.noise_variance = here.new_tensor(max(noise_variance, 2.0 * FLOOR))

    def outputs(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The moments of f, (..., n)."""
        return mean[..., 0], variance[..., 0]

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Normal log-density of y (n,), with f and g (..., n, 2) -> (..., n)."""
        log_noise = self.noise_variance.log() + self.spread * f[..., 1]
        return -0.5 * (LOG_TWO_PI + log_noise + (y - f[..., 0]).square() * (-log_noise).exp())

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Closed form: E exp(-s g) = exp(-s m + s^2 v / 2), and g is independent of f; (..., n)."""
        log_noise = self.noise_variance.log() + self.spread * mean[..., 1]
        precision = (0.5 * self.spread.square() * variance[..., 1] - log_noise).exp()
        square = (y - mean[..., 0]).square() + variance[..., 0]
        return -0.5 * (LOG_TWO_PI + log_noise + square * precision)

    def predictive(self, mean: Tensor, variance: Tensor) -> HeteroscedasticMixture:
        """Mixture of normals with a common mean and noise variances at quadrature nodes of g.

        Heavier-tailed than a normal distribution where g is uncertain; its density is exact however
        far the target is, as of ``HeteroscedasticMixture``.
        """
        g = self.quadrature.points(mean[..., 1], variance[..., 1]).movedim(0, -1)
        own = self.noise_variance * (self.spread * g).exp()
        weights = self.quadrature.weights.to(own).log()
        law = scale_mixture(mean[..., 0], variance[..., 0], own, weights)
        return HeteroscedasticMixture(law, self, mean.double(), variance.double())


class HeteroscedasticMixture(ExactMixture):
    """``ExactMixture`` of targets f + e, e ~ N(0, noise_variance exp(spread g)).

    f drops out of the density, which is the mean over g of N(y; E f, V) with the variance
    V = Var f + noise_variance exp(spread g): an integral by ``log_expectation``. As a function of V
    it is largest where V is the squared distance of y from E f.
    """

    def log_average(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """As in ``ExactMixture``; moments (m, 2)."""
        likelihood: Heteroscedastic = self.likelihood
        spread, log_noise = likelihood.spread.double(), likelihood.noise_variance.double().log()
        square, known = (y - mean[:, 0]).square(), variance[:, 0]
        centre, width = mean[:, 1], variance[:, 1]

        def log_density(g: Tensor) -> Tensor:
            total = known + (log_noise + spread * g).exp()
            return -0.5 * (LOG_TWO_PI + total.log() + square / total)

        with torch.no_grad():
            # to the left the density rises no faster than exp(-spread g / 2)
            least = centre - 0.5 * spread * width
            peak = ((square - known).log() - log_noise) / spread
            peak = torch.where(square > known, torch.maximum(peak, least), least)
        return log_expectation(log_density, centre, width, peak)
