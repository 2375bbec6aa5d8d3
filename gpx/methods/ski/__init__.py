"""Structured kernel interpolation: a kernel on a regular grid, seen from scattered inputs."""

from gpx.methods.ski.evidence import SKIEvidence
from gpx.methods.ski.model import SKI
from gpx.methods.ski.posterior import SKIPosterior

__all__ = ["SKI", "SKIEvidence", "SKIPosterior"]
