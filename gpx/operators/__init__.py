"""Lazy structure: one ``LinearOperator`` subclass per file."""

from gpx.operators.block_toeplitz import BlockToeplitz, grid_lags
from gpx.operators.circulant import BlockCirculant, Circulant
from gpx.operators.combinations import Product, Scaled, Sum
from gpx.operators.dense_matrix import DenseMatrix
from gpx.operators.interpolated import Interpolated
from gpx.operators.interpolation import Interpolation
from gpx.operators.inverse import Inverse
from gpx.operators.kernel_matrix import KernelMatrix
from gpx.operators.khatri_rao import KhatriRao
from gpx.operators.kronecker import Kronecker
from gpx.operators.kronecker_plus_diagonal import KroneckerPlusDiagonal
from gpx.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from gpx.operators.selection import Selection, select
from gpx.operators.toeplitz import Toeplitz

__all__ = [
    "BlockCirculant",
    "BlockToeplitz",
    "Circulant",
    "DenseMatrix",
    "Interpolated",
    "Interpolation",
    "Inverse",
    "KernelMatrix",
    "KhatriRao",
    "Kronecker",
    "KroneckerPlusDiagonal",
    "LowRankPlusDiagonal",
    "Product",
    "Scaled",
    "Selection",
    "Sum",
    "Toeplitz",
    "grid_lags",
    "select",
]
