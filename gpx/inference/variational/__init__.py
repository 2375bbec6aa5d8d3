"""Gaussian families over inducing variables, and the strategies that carry them to the function."""

from gpx.inference.variational.distribution import FullCholesky, MeanField, WhitenedGaussian
from gpx.inference.variational.optimum import (
    GAUSSIAN,
    OPTIMAL,
    OutputSums,
    has_laplace,
    laplace_variational,
    mean_shares,
    observed_sums,
    optimal_variational,
    per_output_sums,
    raise_noise,
    row_scale,
    whitened_optimum,
    whitened_sums,
)
from gpx.inference.variational.strategy import (
    InducingVariables,
    Strategy,
    StrategyTerms,
    Unwhitened,
    Whitened,
    Whitening,
)

__all__ = [
    "GAUSSIAN",
    "OPTIMAL",
    "FullCholesky",
    "InducingVariables",
    "MeanField",
    "OutputSums",
    "Strategy",
    "StrategyTerms",
    "Unwhitened",
    "Whitened",
    "WhitenedGaussian",
    "Whitening",
    "has_laplace",
    "laplace_variational",
    "mean_shares",
    "observed_sums",
    "optimal_variational",
    "per_output_sums",
    "raise_noise",
    "row_scale",
    "whitened_optimum",
    "whitened_sums",
]
