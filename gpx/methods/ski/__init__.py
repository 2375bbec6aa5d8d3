"""Structured kernel interpolation: a kernel on a regular grid, seen from scattered inputs."""

from gpx.methods.ski.evidence import SKIEvidence
from gpx.methods.ski.model import SKI
from gpx.methods.ski.posterior import SKIPosterior
from gpx.methods.ski.projection import LinearProjection, NetworkProjection, Projection
from gpx.methods.ski.stream import SKIStream

__all__ = [
    "SKI",
    "LinearProjection",
    "NetworkProjection",
    "Projection",
    "SKIEvidence",
    "SKIPosterior",
    "SKIStream",
]
