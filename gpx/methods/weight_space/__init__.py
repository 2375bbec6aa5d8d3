"""Gaussian q over very many weights: QSGP, its inducing-point and relevance-vector forms."""

from gpx.methods.weight_space.block_steps import BlockSteps
from gpx.methods.weight_space.exact_elbo import WeightSpaceELBO
from gpx.methods.weight_space.inducing_elbo import InducingELBO
from gpx.methods.weight_space.inducing_steps import InducingSteps
from gpx.methods.weight_space.posterior import QSGPPosterior
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.qsgp_inducing import InducingPosterior, QSGPInducing
from gpx.methods.weight_space.qsrvm import QSRVM, RelevanceVectorPosterior
from gpx.methods.weight_space.quadruply_stochastic_elbo import QuadruplyStochasticELBO
from gpx.methods.weight_space.relevance_steps import RelevanceSteps
from gpx.methods.weight_space.site_bound_elbo import SiteBoundELBO, exact_site_elbo
from gpx.methods.weight_space.stochastic_block_steps import StochasticBlockSteps

__all__ = [
    "QSGP",
    "QSRVM",
    "BlockSteps",
    "InducingELBO",
    "InducingPosterior",
    "InducingSteps",
    "QSGPInducing",
    "QSGPPosterior",
    "QuadruplyStochasticELBO",
    "RelevanceSteps",
    "RelevanceVectorPosterior",
    "SiteBoundELBO",
    "StochasticBlockSteps",
    "WeightSpaceELBO",
    "exact_site_elbo",
]
