"""Posterior process of a weight-space model with one kernel function per training input."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from gpx.inference.exact_solver import IterativeOptions, VarianceName
from gpx.inference.iterative_posterior import BLOCK_BYTES, IterativePosterior
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals

WeightVariance = Literal["augmented", "mean_field", "projection", "collapsed"]
RULE_NAMES: dict[str, VarianceName] = {"projection": "lanczos", "collapsed": "sgpr"}


def augmentation(cross_square: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """Variance that one more basis function centred on the test point adds; (b,).

    The function k(., x_*) is taken a posteriori uncorrelated with the others; its variance c^2 =
    noise / (k_*^T k_* + noise k_**) is the optimum of the bound, and it adds c^2 k_**^2.

    Args:
        cross_square (b,): k_*^T k_*, over the training inputs.
        prior (b,): k_**.
        noise (): noise variance.

    Far from the data it tends to the prior variance; it is of f, without observation noise.
    Source: QSGP paper proposition 4; thesis proposition D.1 (which writes V[y] for V[f]).
    """
    return noise * prior.square() / (cross_square + noise * prior)


class InducingPosterior(IterativePosterior):
    """f(x) = k(x, X) w under q(w) = N(alpha, diag(c)^2), or with a richer variance.

    Args:
        kernel, mean, likelihood, options: as in IterativePosterior.
        variance_family: ``mean_field`` is that of q, ``augmented`` adds ``augmentation``; the
            other two are those of the exact process from above (see ``predictive_variance``).

    Functions sampled from it are those of the exact process with these hyperparameters (pathwise
    conditioning): independent weights of overlapping kernel functions would give rough paths.

    Cost of prediction: n kernel entries and O(n) per point for the first two, O(n rank) for the
    others. State: O(n d).
    """

    data_sized = (*IterativePosterior.data_sized, "scales")
    scales: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        options: IterativeOptions,
        variance_family: WeightVariance,
    ) -> None:
        rule = RULE_NAMES.get(variance_family, "lanczos")
        super().__init__(kernel, mean, likelihood, replace(options, variance=rule))
        self.variance_family = variance_family

    def facts(self) -> dict[str, bool | int | float | str]:
        """Certificate of the mean (NaN where it was not solved for) and the variance in use."""
        found = super().facts()
        found["solver"] = "weights"
        found["variance"] = self.variance_family
        return found

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d)."""
        if self.variance_family in RULE_NAMES:
            return super().predict(x)
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        noise = self.likelihood.noise_variance.double()
        budget = BLOCK_BYTES.get(x.device.type, BLOCK_BYTES["cpu"])
        step = max(1, budget // (x.element_size() * self.inputs.shape[0]))
        for rows in torch.arange(x.shape[0], device=x.device).split(step):
            cross = self.kernel.evaluate(x[rows], self.inputs)
            # large weights of both signs cancel: float32 sums lose more than float32 entries
            mean[rows] = (cross.double() @ self.alpha.double()).to(x.dtype)
            square = cross.square_()
            found = (square @ self.scales.to(x.dtype)).double()
            if self.variance_family == "augmented":
                prior = self.kernel.diagonal(x[rows]).double()
                found = found + augmentation(square.double().sum(1), prior, noise)
            variance[rows] = found.to(x.dtype)
        return Marginals(mean + self.mean(x), variance)
