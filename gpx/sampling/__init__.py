"""Sampled functions, Markov chains, and whether these have converged."""

from gpx.sampling.convergence import bulk_effective_sample_size, potential_scale_reduction
from gpx.sampling.langevin import Langevin, effective_sample_size
from gpx.sampling.prior import SHARED, Frequencies, prior_functions
from gpx.sampling.slices import elliptical_slice, line_slice

__all__ = [
    "SHARED",
    "Frequencies",
    "Langevin",
    "bulk_effective_sample_size",
    "effective_sample_size",
    "elliptical_slice",
    "line_slice",
    "potential_scale_reduction",
    "prior_functions",
]
