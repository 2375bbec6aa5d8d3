"""Sampled functions, Markov chains, and whether these have converged."""

from gpx.sampling.convergence import (
    bulk_effective_sample_size,
    effective_sample_size,
    potential_scale_reduction,
)
from gpx.sampling.hamiltonian import Hamiltonian
from gpx.sampling.langevin import Langevin
from gpx.sampling.maxima import Maxima, maxima
from gpx.sampling.paths import ConditionedFunctions, Functions, evaluate_each
from gpx.sampling.prior import SHARED, Frequencies, PriorFunctions, prior_functions
from gpx.sampling.slices import elliptical_slice, line_slice

__all__ = [
    "SHARED",
    "ConditionedFunctions",
    "Frequencies",
    "Functions",
    "Hamiltonian",
    "Langevin",
    "Maxima",
    "PriorFunctions",
    "bulk_effective_sample_size",
    "effective_sample_size",
    "elliptical_slice",
    "evaluate_each",
    "line_slice",
    "maxima",
    "potential_scale_reduction",
    "prior_functions",
]
