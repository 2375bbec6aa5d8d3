"""Lazy structure: one ``LinearOperator`` subclass per file."""

from gpx.operators.batch_sum import BatchSum
from gpx.operators.block_toeplitz import BlockToeplitz, grid_lags
from gpx.operators.bordered import Bordered
from gpx.operators.circulant import BlockCirculant, Circulant
from gpx.operators.elementwise import Elementwise
from gpx.operators.hadamard_interpolated import HadamardInterpolated
from gpx.operators.interpolated import Interpolated
from gpx.operators.interpolation import Interpolation
from gpx.operators.inverse import Inverse
from gpx.operators.kernel_matrix import KernelMatrix
from gpx.operators.khatri_rao import KhatriRao
from gpx.operators.kronecker import Kronecker
from gpx.operators.kronecker_plus_diagonal import KroneckerPlusDiagonal
from gpx.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from gpx.operators.product import Product
from gpx.operators.selection import Selection, select
from gpx.operators.sums import Scaled, Sum
from gpx.operators.toeplitz import Toeplitz

__all__ = [
    "BatchSum",
    "BlockCirculant",
    "BlockToeplitz",
    "Bordered",
    "Circulant",
    "Elementwise",
    "HadamardInterpolated",
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
