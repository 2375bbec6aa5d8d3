"""Covariance functions and their algebra."""

from gpx.kernels.algebra import Product, Scale, Sum
from gpx.kernels.arc_cosine import ArcCosine
from gpx.kernels.base import Kernel
from gpx.kernels.categorical import Categorical
from gpx.kernels.change_points import ChangePoints
from gpx.kernels.constant import Constant
from gpx.kernels.convolutional import Convolutional
from gpx.kernels.cosine import Cosine
from gpx.kernels.linear import Linear
from gpx.kernels.matern import Matern, Matern12, Matern32, Matern52
from gpx.kernels.matern_nu import MaternNu
from gpx.kernels.over_axes import AxisProduct
from gpx.kernels.periodic import Periodic
from gpx.kernels.polynomial import Polynomial
from gpx.kernels.rational_quadratic import RationalQuadratic
from gpx.kernels.rbf import RBF
from gpx.kernels.spectral_mixture import SpectralMixture
from gpx.kernels.stationary import Stationary
from gpx.kernels.warped import Kumaraswamy, Warped
from gpx.kernels.wendland import Wendland

__all__ = [
    "RBF",
    "ArcCosine",
    "AxisProduct",
    "Categorical",
    "ChangePoints",
    "Constant",
    "Convolutional",
    "Cosine",
    "Kernel",
    "Kumaraswamy",
    "Linear",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "MaternNu",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Scale",
    "SpectralMixture",
    "Stationary",
    "Sum",
    "Warped",
    "Wendland",
]
