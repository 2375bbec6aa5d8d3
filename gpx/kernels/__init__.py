"""Covariance functions and their algebra."""

from gpx.kernels.algebra import Product, Scale, Sum
from gpx.kernels.base import Kernel
from gpx.kernels.constant import Constant
from gpx.kernels.matern import Matern12, Matern32, Matern52
from gpx.kernels.rbf import RBF
from gpx.kernels.stationary import Stationary

__all__ = [
    "RBF",
    "Constant",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Product",
    "Scale",
    "Stationary",
    "Sum",
]
