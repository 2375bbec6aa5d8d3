"""Gaussian noise, of one output or of several outputs with a variance each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.constants import LOG_TWO_PI
from gpx.constraints import FLOOR, positive_parameter
from gpx.errors import ConfigError, class_name
from gpx.likelihoods.base import Curvature, Likelihood, Tilted
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg.known_gradient import first_derivative_only


class _ExpectedLogNormal(torch.autograd.Function):
    """-(log(2 pi s) + ((y - m)^2 + v) / s) / 2, elementwise."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        residual = y - mean
        scaled = torch.addcmul(variance, residual, residual) / noise
        ctx.save_for_backward(residual, scaled, noise, y, mean, variance)
        return torch.rsub(noise.log() + scaled, -0.5 * LOG_TWO_PI, alpha=0.5)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, scaled, noise, y, mean, variance = ctx.saved_tensors
        need_y, need_mean, need_variance, need_noise = ctx.needs_input_grad
        part = grad / noise
        to_mean = part * residual if need_mean or need_y else None
        half = part * -0.5 if need_variance or need_noise else None
        return (
            -to_mean.sum_to_size(y.shape) if need_y and to_mean is not None else None,
            to_mean.sum_to_size(mean.shape) if need_mean and to_mean is not None else None,
            half.sum_to_size(variance.shape) if need_variance and half is not None else None,
            torch.addcmul(half, half, scaled, value=-1.0).sum_to_size(noise.shape)
            if need_noise and half is not None
            else None,
        )


def expected_log_normal(y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """E log N(y; f, s) for f of mean m and variance v: -(log(2 pi s) + ((y - m)^2 + v) / s) / 2.

    Shapes broadcast. One autograd function, for speed; differentiable once.
    """
    return _ExpectedLogNormal.apply(y, mean, variance, noise)


def _log_normal(y: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
    """log N(y; m, s); shapes broadcast."""
    return -0.5 * (LOG_TWO_PI + noise.log() + (y - mean).square() / noise)


class Gaussian(Likelihood):
    """y = f + e, e ~ N(0, noise_variance).

    Args:
        noise_variance: initial variance of the noise, in squared target units; learned.
        noise_floor: infimum of the noise variance, same unit.

    Raises:
        ConfigError: several noise variances.

    All expectations are closed forms. Cost: O(n).
    """

    log_concave = True
    task = "regression"
    weights_divide_noise = True
    noise_variance: Tensor

    def __init__(self, noise_variance: float = 0.1, noise_floor: float = FLOOR) -> None:
        super().__init__()
        positive_parameter(self, "noise_variance", noise_variance, floor=noise_floor)
        if self.noise_variance.numel() != 1:
            raise ConfigError(
                f"noise_variance was set to {self.noise_variance.numel()} numbers, and a Gaussian "
                "likelihood learns one for all rows: give known variances of the rows to "
                "model.know_noise(variances) or gpx.fit(..., noise=); GaussianOutputs(p) learns "
                "one for each of p outputs"
            )

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Normal log-density at y with mean f; (..., n)."""
        return _log_normal(y, f, self.noise_variance)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log_prob at the mean, minus half the variance over the noise variance; (n,)."""
        return expected_log_normal(y, mean, variance, self.noise_variance)

    def require_row_noise(self, noise: RowNoise) -> None:
        """Accepts any."""

    def log_prob_of_rows(self, y: Tensor, f: Tensor, noise: RowNoise | None) -> Tensor:
        """Normal log-density with the noise variance of each row.

        A row of weight w is the mean of w rows, with noise variance divided by w: inference of f is
        as from w equal rows, but the density depends differently on the noise variance.
        """
        if noise is None:
            return super().log_prob_of_rows(y, f, noise)
        return _log_normal(y, f, noise.like(f).variance(self.noise_variance))

    def expected_log_prob_of_rows(
        self, y: Tensor, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Tensor:
        """As ``expected_log_prob``, with the noise variance of each row."""
        if noise is None:
            return super().expected_log_prob_of_rows(y, mean, variance, noise)
        each = noise.like(mean).variance(self.noise_variance)
        return expected_log_normal(y, mean, variance, each)

    def log_predictive_of_rows(
        self, y: Tensor, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Tensor:
        """Normal log-density with the latent variance plus the noise variance of each row."""
        own = (
            self.noise_variance if noise is None else noise.like(mean).variance(self.noise_variance)
        )
        return _log_normal(y, mean, variance + own)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.Normal:
        """Normal with the latent variance plus the noise variance."""
        return torch.distributions.Normal(
            mean, (variance.clamp_min(0) + self.noise_variance).sqrt()
        )

    def predictive_of_rows(
        self, mean: Tensor, variance: Tensor, noise: RowNoise
    ) -> torch.distributions.Normal:
        """As ``predictive``, with the noise variance of each row."""
        each = noise.like(mean).variance(self.noise_variance.to(mean))
        return torch.distributions.Normal(mean, (variance.clamp_min(0) + each).sqrt())

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """(y - f) / noise and 1 / noise."""
        gradient = (y - f) / self.noise_variance
        return Curvature(gradient, (1.0 / self.noise_variance).expand_as(gradient))

    def tilted(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tilted:
        """Of y ~ N(mean, variance + noise)."""
        total = variance + self.noise_variance
        gradient = (y - mean) / total
        log_normaliser = -0.5 * (LOG_TWO_PI + total.log() + (y - mean) * gradient)
        return Tilted(log_normaliser, gradient, 1.0 / total)


class NoisyOutputs(Likelihood):
    """Base class of several outputs with Gaussian noise, each of its own variance.

    Args:
        num_outputs: p, at least two.
        num_latents: latent functions.
        noise_variance: initial variance of the noise of every output, in squared target units;
            p of them are learned.
        noise_floor: infimum of the noise variances, same unit.

    Missing targets (NaN) are left out of the sums over outputs.

    Raises:
        ConfigError: fewer than two outputs.
    """

    log_concave = True
    task = "regression"
    weights_divide_noise = True
    noise_variance: Tensor

    def __init__(
        self, num_outputs: int, num_latents: int, noise_variance: float, noise_floor: float
    ) -> None:
        super().__init__()
        if num_outputs < 2:
            raise ConfigError(
                f"{class_name(self)} is for two outputs or more, got {num_outputs}; for one take "
                "the Gaussian likelihood, and model=ExactGP() in place of a model of several"
            )
        self.num_outputs, self.num_latents = num_outputs, num_latents
        self.noise_floor = noise_floor
        noise = torch.full((num_outputs,), noise_variance, dtype=torch.float64)
        positive_parameter(self, "noise_variance", noise, floor=noise_floor)

    def require_row_noise(self, noise: RowNoise) -> None:
        """Accepts weights; models that know the noise of every cell do not ask."""
        if bool((noise.known != 0.0).any()):
            raise ConfigError(
                "known noise (noise=) of several targets is taken by model=IndependentGP() and "
                "CoregionalGP(): choose one of these, leave it out, or give weights="
            )

    def output(self, place: int) -> Gaussian:
        """A Gaussian likelihood with the current noise variance of one output."""
        noise = self.noise_variance.detach()
        return Gaussian(float(noise[place]), self.noise_floor).to(noise)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Sum over the outputs of normal log-densities: y (n, p), f of the latents -> (..., n)."""
        return self.log_prob_of_rows(y, f, None)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log_prob at the mean, minus half of each variance over its noise variance; (..., n)."""
        return self.expected_log_prob_of_rows(y, mean, variance, None)

    def noise_of_rows(self, noise: RowNoise | None) -> Tensor:
        """Noise variances (p,), or (n, p) of rows with weights or known noise."""
        learned = self.noise_variance
        return learned if noise is None else noise.like(learned).variances(learned)

    def log_prob_of_rows(self, y: Tensor, f: Tensor, noise: RowNoise | None) -> Tensor:
        """A row of weight w is the mean of w rows: every noise variance is divided by w."""
        known, y = observed(y)
        mean, _ = self.outputs(f, torch.zeros_like(f))
        each = _log_normal(y, mean, self.noise_of_rows(noise))
        return torch.where(known, each, 0.0).sum(-1)

    def expected_log_prob_of_rows(
        self, y: Tensor, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Tensor:
        """As ``expected_log_prob``, with the weight of each row."""
        known, y = observed(y)
        moments = self.outputs(mean, variance)
        each = expected_log_normal(y, *moments, self.noise_of_rows(noise))
        return torch.where(known, each, 0.0).sum(-1)

    def log_predictive_of_rows(
        self, y: Tensor, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Tensor:
        """Sum over the outputs of normal log-densities, each of its own mean and variance."""
        known, y = observed(y)
        mean, variance = self.outputs(mean, variance)
        each = _log_normal(y, mean, variance + self.noise_of_rows(noise))
        return torch.where(known, each, 0.0).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor) -> Distribution:
        """Independent normals with the variances of the outputs plus the noise variances."""
        return self.predictive_of_rows(mean, variance, None)

    def predictive_of_rows(
        self, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Distribution:
        """As ``predictive``; in a row of weight w every noise variance is divided by w."""
        mean, variance = self.outputs(mean, variance.clamp_min(0))
        std = (variance + self.noise_of_rows(noise)).sqrt()
        return torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)


def observed(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mask of the targets that are not NaN, and the targets with zeros in place of NaN."""
    known = ~y.isnan()
    return known, torch.where(known, y, 0.0)  # NaN would spoil gradients even where masked


class GaussianOutputs(NoisyOutputs):
    """y_j = f_j + e_j, e_j ~ N(0, noise_variance_j), for p outputs with a latent function each.

    Given the latent functions the outputs are independent; they share the model's kernel and
    inducing points.

    Args:
        num_outputs, noise_variance, noise_floor: of ``NoisyOutputs``.

    All expectations are closed forms. Cost: O(n p).
    """

    def __init__(
        self, num_outputs: int, noise_variance: float = 0.1, noise_floor: float = FLOOR
    ) -> None:
        super().__init__(num_outputs, num_outputs, noise_variance, noise_floor)
