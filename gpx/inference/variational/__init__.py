"""Gaussian families over inducing variables, and the strategies that carry them to the function."""

from gpx.inference.variational.distribution import FullCholesky, MeanField, WhitenedGaussian
from gpx.inference.variational.optimum import (
    GAUSSIAN,
    OPTIMAL,
    OutputSums,
    mean_shares,
    observed_sums,
    optimal_variational,
    per_output_sums,
    raise_noise,
    row_scale,
    whitened_optimum,
    whitened_sums,
)
from gpx.inference.variational.settled_sites import (
    SiteLikelihood,
    concave_start,
    expected_curvature,
    has_concave_start,
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
    "SiteLikelihood",
    "Strategy",
    "StrategyTerms",
    "Unwhitened",
    "Whitened",
    "WhitenedGaussian",
    "Whitening",
    "concave_start",
    "expected_curvature",
    "has_concave_start",
    "mean_shares",
    "observed_sums",
    "optimal_variational",
    "per_output_sums",
    "raise_noise",
    "row_scale",
    "whitened_optimum",
    "whitened_sums",
]
