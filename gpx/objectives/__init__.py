"""Evidence objectives, one per file."""

from gpx.objectives.barely_biased_mll import BarelyBiasedMLL
from gpx.objectives.base import Evidence, Objective
from gpx.objectives.cg_lower_bound import CGLowerBound
from gpx.objectives.collapsed_elbo import CollapsedELBO
from gpx.objectives.eigenfunction_evidence import EigenfunctionEvidence
from gpx.objectives.exact_mll import ExactMLL
from gpx.objectives.gcv import GCV
from gpx.objectives.grid_mll import GridMLL
from gpx.objectives.inducing_elbo import InducingELBO
from gpx.objectives.iterative_mll import IterativeMLL
from gpx.objectives.marginal_likelihood import MarginalLikelihood
from gpx.objectives.quadruply_stochastic_elbo import QuadruplyStochasticELBO
from gpx.objectives.reweighted_evidence import ReweightedEvidence
from gpx.objectives.site_bound_elbo import SiteBoundELBO, exact_site_elbo
from gpx.objectives.svgp_elbo import SVGPELBO
from gpx.objectives.weight_space_elbo import WeightSpaceELBO

__all__ = [
    "GCV",
    "SVGPELBO",
    "BarelyBiasedMLL",
    "CGLowerBound",
    "CollapsedELBO",
    "EigenfunctionEvidence",
    "Evidence",
    "ExactMLL",
    "GridMLL",
    "InducingELBO",
    "IterativeMLL",
    "MarginalLikelihood",
    "Objective",
    "QuadruplyStochasticELBO",
    "ReweightedEvidence",
    "SiteBoundELBO",
    "WeightSpaceELBO",
    "exact_site_elbo",
]
