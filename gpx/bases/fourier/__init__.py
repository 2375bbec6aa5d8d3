"""Fourier features of stationary kernels: random, orthogonal, by quadrature."""

from gpx.bases.fourier.importance_weighted import ImportanceWeightedFourier, Proposal
from gpx.bases.fourier.importance_weights import ImportanceWeights, importance_weights
from gpx.bases.fourier.orthogonal_features import (
    FastfoodFourier,
    OrthogonalFourier,
    StructuredOrthogonalFourier,
)
from gpx.bases.fourier.quadrature_features import GaussHermiteFourier, QuasiMonteCarloFourier
from gpx.bases.fourier.random_fourier import RandomFourier

__all__ = [
    "FastfoodFourier",
    "GaussHermiteFourier",
    "ImportanceWeightedFourier",
    "ImportanceWeights",
    "OrthogonalFourier",
    "Proposal",
    "QuasiMonteCarloFourier",
    "RandomFourier",
    "StructuredOrthogonalFourier",
    "importance_weights",
]
