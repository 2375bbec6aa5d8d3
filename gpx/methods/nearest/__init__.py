"""Models that give every value the few data, or inducing points, nearest to it."""

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
