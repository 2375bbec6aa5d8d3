"""Gaussian process classification on all points at once: Laplace, EP, VGP, Markov chains."""

from gpx.methods.classification.elliptical_slice import EllipticalSlice
from gpx.methods.classification.laplace_evidence import LaplaceEvidence
from gpx.methods.classification.model import VGP, ExpectationPropagationGP, LaplaceGP
from gpx.methods.classification.propagation_evidence import EPEvidence
from gpx.methods.classification.sampled_model import LatentLikelihood, SampledGP
from gpx.methods.classification.sampled_posterior import SampledPosterior
from gpx.methods.classification.site_posterior import SitePosterior
from gpx.methods.classification.variational_evidence import VGPELBO

__all__ = [
    "VGP",
    "VGPELBO",
    "EPEvidence",
    "EllipticalSlice",
    "ExpectationPropagationGP",
    "LaplaceEvidence",
    "LaplaceGP",
    "LatentLikelihood",
    "SampledGP",
    "SampledPosterior",
    "SitePosterior",
]
