"""Inducing points: collapsed (SGPR), stochastic (SVGP), corrected by conjugate gradients (CGLB)."""

from gpx.methods.sparse.cg_lower_bound import CGLowerBound
from gpx.methods.sparse.cglb import CGLB, CGLBPosterior
from gpx.methods.sparse.collapsed_elbo import CollapsedELBO
from gpx.methods.sparse.sgpr import SGPR, SGPRPosterior
from gpx.methods.sparse.svgp import SVGP, SVGPPosterior
from gpx.methods.sparse.svgp_elbo import SVGPELBO

__all__ = [
    "CGLB",
    "SGPR",
    "SVGP",
    "SVGPELBO",
    "CGLBPosterior",
    "CGLowerBound",
    "CollapsedELBO",
    "SGPRPosterior",
    "SVGPPosterior",
]
