"""Sparse spectrum Gaussian processes: trigonometric features with learned frequencies."""

from gpx.methods.sparse_spectrum.evidence import SparseSpectrumELBO, SparseSpectrumEvidence
from gpx.methods.sparse_spectrum.model import SSGP, VSSGP
from gpx.methods.sparse_spectrum.posterior import SparseSpectrumPosterior

__all__ = [
    "SSGP",
    "VSSGP",
    "SparseSpectrumELBO",
    "SparseSpectrumEvidence",
    "SparseSpectrumPosterior",
]
