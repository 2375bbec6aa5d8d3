"""Sampled functions."""

from gpx.sampling.prior import prior_functions

__all__ = ["prior_functions"]
