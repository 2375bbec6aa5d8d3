"""One nn.Module per approximation."""

from gpx.models.base import Marginals, Model, Posterior
from gpx.models.cglb import CGLB, CGLBPosterior
from gpx.models.exact import ExactGP, ExactPosterior
from gpx.models.exact_solver import IterativeOptions
from gpx.models.iterative_posterior import IterativePosterior
from gpx.models.sgpr import SGPR, SGPRPosterior
from gpx.models.svgp import SVGP, SVGPPosterior
from gpx.models.weight_space import QSGP
from gpx.models.weight_space_posterior import QSGPPosterior

__all__ = [
    "CGLB",
    "QSGP",
    "SGPR",
    "SVGP",
    "CGLBPosterior",
    "ExactGP",
    "ExactPosterior",
    "IterativeOptions",
    "IterativePosterior",
    "Marginals",
    "Model",
    "Posterior",
    "QSGPPosterior",
    "SGPRPosterior",
    "SVGPPosterior",
]
