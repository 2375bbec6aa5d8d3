"""Likelihoods p(y | f)."""

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian

__all__ = ["Gaussian", "Likelihood"]
