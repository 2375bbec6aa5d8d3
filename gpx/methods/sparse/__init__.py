"""Inducing points: collapsed (SGPR), stochastic (SVGP), corrected by conjugate gradients (CGLB)."""

from gpx.methods.sparse.cg_lower_bound import CGLowerBound
from gpx.methods.sparse.cglb import CGLB, CGLBPosterior
from gpx.methods.sparse.collapsed_elbo import CollapsedELBO
from gpx.methods.sparse.sgpr import SGPR, SGPRPosterior
from gpx.methods.sparse.svgp import SVGP, SVGPPosterior
from gpx.methods.sparse.svgp_elbo import SVGPELBO
from gpx.methods.sparse.variational import (
    FullCholesky,
    MeanField,
    Strategy,
    Whitened,
    WhitenedGaussian,
)

__all__ = [
    "CGLB",
    "SGPR",
    "SVGP",
    "SVGPELBO",
    "CGLBPosterior",
    "CGLowerBound",
    "CollapsedELBO",
    "FullCholesky",
    "MeanField",
    "SGPRPosterior",
    "SVGPPosterior",
    "Strategy",
    "Whitened",
    "WhitenedGaussian",
]
