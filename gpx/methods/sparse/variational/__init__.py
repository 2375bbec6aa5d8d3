"""Gaussian families over inducing variables, and the strategies that carry them to the function."""

from gpx.methods.sparse.variational.distribution import (
    FullCholesky,
    MeanField,
    WhitenedGaussian,
)
from gpx.methods.sparse.variational.strategy import (
    InducingVariables,
    Strategy,
    StrategyTerms,
    Whitened,
    Whitening,
)

__all__ = [
    "FullCholesky",
    "InducingVariables",
    "MeanField",
    "Strategy",
    "StrategyTerms",
    "Whitened",
    "WhitenedGaussian",
    "Whitening",
]
