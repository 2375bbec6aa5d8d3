"""Evidence objectives, one per file."""

from gpx.objectives.base import Evidence, Objective
from gpx.objectives.collapsed_elbo import CollapsedELBO
from gpx.objectives.exact_mll import ExactMLL
from gpx.objectives.quadruply_stochastic_elbo import QuadruplyStochasticELBO
from gpx.objectives.svgp_elbo import SVGPElbo
from gpx.objectives.weight_space_elbo import WeightSpaceELBO

__all__ = [
    "CollapsedELBO",
    "Evidence",
    "ExactMLL",
    "Objective",
    "QuadruplyStochasticELBO",
    "SVGPElbo",
    "WeightSpaceELBO",
]
