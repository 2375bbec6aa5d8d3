"""Experts: many exact Gaussian processes on few rows each, trained as a batch."""

from gpx.methods.experts.committee import Committee
from gpx.methods.experts.committee_posterior import CommitteePosterior
from gpx.methods.experts.evidence import ExpertsMLL

__all__ = ["Committee", "CommitteePosterior", "ExpertsMLL"]
