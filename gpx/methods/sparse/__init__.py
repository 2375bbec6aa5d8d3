"""Inducing points: variational (SGPR, SVGP, CGLB), and effective priors (SoR to PIC)."""

from gpx.inference.variational import (
    FullCholesky,
    MeanField,
    Strategy,
    Unwhitened,
    Whitened,
    WhitenedGaussian,
)
from gpx.methods.sparse.cg_lower_bound import CGLowerBound
from gpx.methods.sparse.cglb import CGLB, CGLBPosterior
from gpx.methods.sparse.collapsed_elbo import CollapsedELBO
from gpx.methods.sparse.conv_gp import ConvGP
from gpx.methods.sparse.effective_evidence import EffectiveEvidence
from gpx.methods.sparse.effective_posterior import BlockPosterior, EffectivePosterior
from gpx.methods.sparse.effective_prior import EffectivePrior
from gpx.methods.sparse.sgpr import SGPR, SGPRPosterior
from gpx.methods.sparse.svgp import SVGP
from gpx.methods.sparse.svgp_elbo import SVGPELBO
from gpx.methods.sparse.svgp_posterior import SVGPPosterior

__all__ = [
    "CGLB",
    "SGPR",
    "SVGP",
    "SVGPELBO",
    "BlockPosterior",
    "CGLBPosterior",
    "CGLowerBound",
    "CollapsedELBO",
    "ConvGP",
    "EffectiveEvidence",
    "EffectivePosterior",
    "EffectivePrior",
    "FullCholesky",
    "MeanField",
    "SGPRPosterior",
    "SVGPPosterior",
    "Strategy",
    "Unwhitened",
    "Whitened",
    "WhitenedGaussian",
]
