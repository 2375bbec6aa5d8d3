"""Models that give every value the few data, or inducing points, nearest to it."""

from gpx.methods.nearest.vecchia import Vecchia, VecchiaPosterior
from gpx.methods.nearest.vecchia_mll import VecchiaMLL

__all__ = ["Vecchia", "VecchiaMLL", "VecchiaPosterior"]
