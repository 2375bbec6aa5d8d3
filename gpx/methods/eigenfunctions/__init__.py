"""Regression on the eigenfunctions of a kernel on a grid of any size (GRIEF)."""

from gpx.methods.eigenfunctions.evidence import EigenfunctionEvidence
from gpx.methods.eigenfunctions.model import GRIEF
from gpx.methods.eigenfunctions.posterior import GRIEFPosterior

__all__ = ["GRIEF", "EigenfunctionEvidence", "GRIEFPosterior"]
