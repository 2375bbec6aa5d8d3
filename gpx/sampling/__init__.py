"""Sampled functions, and Markov chains over hyperparameters."""

from gpx.sampling.langevin import Langevin, effective_sample_size
from gpx.sampling.prior import prior_functions

__all__ = ["Langevin", "effective_sample_size", "prior_functions"]
