"""Finite feature maps phi: R^d -> R^m with a weight prior."""

from gpx.bases.arc_cosine import ArcCosineFeatures
from gpx.bases.base import Basis, basis_of
from gpx.bases.counter_random import philox4x32, standard_normals
from gpx.bases.dictionary import KernelDictionary
from gpx.bases.fourier.importance_weighted import (
    ImportanceWeightedFourier,
    ImportanceWeights,
    Proposal,
    importance_weights,
)
from gpx.bases.fourier.orthogonal_features import (
    FastfoodFourier,
    OrthogonalFourier,
    StructuredOrthogonalFourier,
)
from gpx.bases.fourier.quadrature_features import GaussHermiteFourier, QuasiMonteCarloFourier
from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.grid_eigenfunctions.features import GridFeatures
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.bases.inducing_points import InducingPoints, TrainingPoints
from gpx.bases.interpolated_grid import InterpolatedGrid
from gpx.bases.laplacian import LaplacianEigenfunctions

__all__ = [
    "ArcCosineFeatures",
    "Basis",
    "FastfoodFourier",
    "GaussHermiteFourier",
    "GridEigenfunctions",
    "GridFeatures",
    "GridModes",
    "GridOptions",
    "ImportanceWeightedFourier",
    "ImportanceWeights",
    "InducingPoints",
    "InterpolatedGrid",
    "KernelDictionary",
    "LaplacianEigenfunctions",
    "OrthogonalFourier",
    "Proposal",
    "QuasiMonteCarloFourier",
    "RandomFourier",
    "StructuredOrthogonalFourier",
    "TrainingPoints",
    "basis_of",
    "importance_weights",
    "philox4x32",
    "standard_normals",
]
