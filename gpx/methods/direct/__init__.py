"""Basis functions with discrete weights: evidence lower bounds with exact values and gradients."""

from gpx.methods.direct.ascent import CoordinateAscent
from gpx.methods.direct.elbo import DirectELBO
from gpx.methods.direct.grids import NoiseGrid, WeightGrid
from gpx.methods.direct.logistic import DirectLogistic
from gpx.methods.direct.logistic_bound import DirectLogisticBound
from gpx.methods.direct.mixture import DirectMixture
from gpx.methods.direct.mixture_elbo import DirectMixtureELBO, DirectSampledELBO
from gpx.methods.direct.model import Direct
from gpx.methods.direct.network import DirectNetwork
from gpx.methods.direct.network_elbo import DirectNetworkELBO
from gpx.methods.direct.network_posterior import DirectNetworkPosterior
from gpx.methods.direct.posterior import DirectPosterior

__all__ = [
    "CoordinateAscent",
    "Direct",
    "DirectELBO",
    "DirectLogistic",
    "DirectLogisticBound",
    "DirectMixture",
    "DirectMixtureELBO",
    "DirectNetwork",
    "DirectNetworkELBO",
    "DirectNetworkPosterior",
    "DirectPosterior",
    "DirectSampledELBO",
    "NoiseGrid",
    "WeightGrid",
]
