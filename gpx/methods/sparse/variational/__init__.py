"""Gaussian families over inducing variables, and the strategy that carries them to the function."""

from gpx.methods.sparse.variational.collapsed import CollapsedStatistics, collapsed_statistics
from gpx.methods.sparse.variational.distribution import (
    FullCholesky,
    MeanField,
    WhitenedGaussian,
    family,
)
from gpx.methods.sparse.variational.whitened import Whitening, whitened_marginals, whitening

__all__ = [
    "CollapsedStatistics",
    "FullCholesky",
    "MeanField",
    "WhitenedGaussian",
    "Whitening",
    "collapsed_statistics",
    "family",
    "whitened_marginals",
    "whitening",
]
