"""Finite feature maps phi: R^d -> R^m with a weight prior."""

from gpx.bases.base import Basis
from gpx.bases.counter_random import philox4x32, standard_normals
from gpx.bases.dictionary import KernelDictionary
from gpx.bases.grief import GridEigenfunctions, GridModes
from gpx.bases.grief_grid import GridOptions
from gpx.bases.grief_interpolation import GridInterpolation
from gpx.bases.grief_preconditioner import eigenfunction_preconditioner
from gpx.bases.importance_weighted import ImportanceWeightedFourier, Proposal
from gpx.bases.importance_weights import ImportanceWeights, importance_weights
from gpx.bases.inducing_points import InducingPoints
from gpx.bases.orthogonal_features import OrthogonalFourier, StructuredOrthogonalFourier
from gpx.bases.quadrature_features import GaussHermiteFourier, QuasiMonteCarloFourier
from gpx.bases.random_fourier import RandomFourier

__all__ = [
    "Basis",
    "GaussHermiteFourier",
    "GridEigenfunctions",
    "GridInterpolation",
    "GridModes",
    "GridOptions",
    "ImportanceWeightedFourier",
    "ImportanceWeights",
    "InducingPoints",
    "KernelDictionary",
    "OrthogonalFourier",
    "Proposal",
    "QuasiMonteCarloFourier",
    "RandomFourier",
    "StructuredOrthogonalFourier",
    "eigenfunction_preconditioner",
    "importance_weights",
    "philox4x32",
    "standard_normals",
]
