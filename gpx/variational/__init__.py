"""Variational families over inducing variables, and strategies that carry them to the function."""

from gpx.variational.collapsed import CollapsedStatistics, collapsed_statistics
from gpx.variational.distribution import FullCholesky, MeanField, WhitenedGaussian, family
from gpx.variational.whitened import Whitening, whitened_marginals, whitening

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
