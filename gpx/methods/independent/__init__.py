"""Several targets, each an exact Gaussian process of its own, evaluated in batches."""

from gpx.methods.independent.mll import IndependentMLL
from gpx.methods.independent.model import IndependentGP
from gpx.methods.independent.posterior import IndependentPosterior

__all__ = ["IndependentGP", "IndependentMLL", "IndependentPosterior"]
