"""One nn.Module per approximation."""

from gpx.models.base import Marginals, Model, Posterior
from gpx.models.exact import ExactGP, ExactPosterior
from gpx.models.sgpr import SGPR, SGPRPosterior
from gpx.models.svgp import SVGP, SVGPPosterior
from gpx.models.weight_space import QSGP
from gpx.models.weight_space_posterior import QSGPPosterior

__all__ = [
    "QSGP",
    "SGPR",
    "SVGP",
    "ExactGP",
    "ExactPosterior",
    "Marginals",
    "Model",
    "Posterior",
    "QSGPPosterior",
    "SGPRPosterior",
    "SVGPPosterior",
]
