"""Models that give every value the few data, or inducing points, nearest to it."""

from gpx.methods.nearest.swsgp import SWSGP, SWSGPPosterior
from gpx.methods.nearest.swsgp_objective import SWSGPObjective
from gpx.methods.nearest.vecchia import Vecchia, VecchiaPosterior
from gpx.methods.nearest.vecchia_mll import VecchiaMLL

__all__ = ["SWSGP", "SWSGPObjective", "SWSGPPosterior", "Vecchia", "VecchiaMLL", "VecchiaPosterior"]
