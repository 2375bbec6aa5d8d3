"""Structured kernel interpolation (SKI): scattered inputs interpolated from a kernel on a grid."""

from gpx.methods.ski.evidence import SKIEvidence
from gpx.methods.ski.model import SKI
from gpx.methods.ski.posterior import SKIPosterior
from gpx.methods.ski.product import InterpolatedProduct
from gpx.methods.ski.projection import LinearProjection, NetworkProjection, Projection
from gpx.methods.ski.stream import SKIStream

__all__ = [
    "SKI",
    "InterpolatedProduct",
    "LinearProjection",
    "NetworkProjection",
    "Projection",
    "SKIEvidence",
    "SKIPosterior",
    "SKIStream",
]
