"""One nn.Module per approximation."""

from gpx.models.base import Marginals, Model, Posterior
from gpx.models.cglb import CGLB, CGLBPosterior
from gpx.models.exact import ExactGP, ExactPosterior
from gpx.models.exact_solver import IterativeOptions
from gpx.models.grid import GridGP
from gpx.models.grid_posterior import GridPosterior
from gpx.models.grief import GRIEF
from gpx.models.grief_posterior import GRIEFPosterior
from gpx.models.hyper_priors import HyperPriors, InverseGamma, WeightPriors
from gpx.models.inducing_posterior import InducingPosterior
from gpx.models.inducing_weights import QSGPInducing
from gpx.models.iterative_posterior import IterativePosterior
from gpx.models.log_normal import LogNormal
from gpx.models.relevance_vectors import QSRVM, RelevanceVectorPosterior
from gpx.models.reweighted import Reweighted
from gpx.models.reweighted_posterior import ReweightedPosterior
from gpx.models.sgpr import SGPR, SGPRPosterior
from gpx.models.svgp import SVGP, SVGPPosterior
from gpx.models.weight_space import QSGP
from gpx.models.weight_space_posterior import QSGPPosterior

__all__ = [
    "CGLB",
    "GRIEF",
    "QSGP",
    "QSRVM",
    "SGPR",
    "SVGP",
    "CGLBPosterior",
    "ExactGP",
    "ExactPosterior",
    "GRIEFPosterior",
    "GridGP",
    "GridPosterior",
    "HyperPriors",
    "InducingPosterior",
    "InverseGamma",
    "IterativeOptions",
    "IterativePosterior",
    "LogNormal",
    "Marginals",
    "Model",
    "Posterior",
    "QSGPInducing",
    "QSGPPosterior",
    "RelevanceVectorPosterior",
    "Reweighted",
    "ReweightedPosterior",
    "SGPRPosterior",
    "SVGPPosterior",
    "WeightPriors",
]
