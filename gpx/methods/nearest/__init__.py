"""Models in which every value depends only on the nearest data or inducing points."""

from gpx.methods.nearest.posterior import NearestPosterior
from gpx.methods.nearest.swsgp import SWSGP
from gpx.methods.nearest.swsgp_objective import SWSGPObjective
from gpx.methods.nearest.vecchia import Vecchia, VecchiaPosterior
from gpx.methods.nearest.vecchia_mll import VecchiaMLL
from gpx.methods.nearest.vnngp import VNNGP
from gpx.methods.nearest.vnngp_elbo import VNNGPELBO

__all__ = [
    "SWSGP",
    "VNNGP",
    "VNNGPELBO",
    "NearestPosterior",
    "SWSGPObjective",
    "Vecchia",
    "VecchiaMLL",
    "VecchiaPosterior",
]
