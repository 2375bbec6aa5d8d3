"""Sampled functions, and Markov chains over hyperparameters."""

from gpx.sampling.langevin import Langevin, effective_sample_size
from gpx.sampling.prior import SHARED, Frequencies, prior_functions

__all__ = ["SHARED", "Frequencies", "Langevin", "effective_sample_size", "prior_functions"]
