"""Priors of hyperparameters, for maximum a posteriori instead of maximum likelihood estimates.

With few rows the maximum of the evidence may have implausible lengthscales and noise. With priors,
optimisers maximise the evidence plus the log prior density. The density is that of the natural
values, as in GPyTorch and GPflow; the mode depends on this choice. Reported values of the evidence
do not include the prior.
"""

from gpx.priors.base import Prior
from gpx.priors.densities import Gamma, LogNormal, Normal
from gpx.priors.dimension_scaled import DimensionScaled, inputs_of_lengthscale
from gpx.priors.named import Hyperparameter, Priors, hyperparameters_of
from gpx.priors.sparse_axes import SparseAxes

__all__ = [
    "DimensionScaled",
    "Gamma",
    "Hyperparameter",
    "LogNormal",
    "Normal",
    "Prior",
    "Priors",
    "SparseAxes",
    "hyperparameters_of",
    "inputs_of_lengthscale",
]
