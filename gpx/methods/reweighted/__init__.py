"""Regression on a fixed basis with learned prior variances, from sums over the data."""

from gpx.methods.reweighted.evidence import ReweightedEvidence
from gpx.methods.reweighted.hyper_priors import HyperPriors, InverseGamma, LogNormal, WeightPriors
from gpx.methods.reweighted.mala import MALA
from gpx.methods.reweighted.model import Reweighted
from gpx.methods.reweighted.posterior import ReweightedPosterior
from gpx.methods.reweighted.relevance_vectors import RelevanceVectors

__all__ = [
    "MALA",
    "HyperPriors",
    "InverseGamma",
    "LogNormal",
    "RelevanceVectors",
    "Reweighted",
    "ReweightedEvidence",
    "ReweightedPosterior",
    "WeightPriors",
]
