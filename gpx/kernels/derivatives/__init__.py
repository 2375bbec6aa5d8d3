"""Kernels differentiated by their inputs: covariances with partial derivatives."""

from gpx.kernels.derivatives.algebra import InColumns, OfProduct, OfSum, Scaled, Unchanging
from gpx.kernels.derivatives.base import ByAutograd, Input, KernelDerivatives, no_derivatives
from gpx.kernels.derivatives.check import check_derivatives
from gpx.kernels.derivatives.maps import Moved, OfFeature, OfWarp
from gpx.kernels.derivatives.profiles import OfCoordinates, OfDistance, OfInnerProduct

__all__ = [
    "ByAutograd",
    "InColumns",
    "Input",
    "KernelDerivatives",
    "Moved",
    "OfCoordinates",
    "OfDistance",
    "OfFeature",
    "OfInnerProduct",
    "OfProduct",
    "OfSum",
    "OfWarp",
    "Scaled",
    "Unchanging",
    "check_derivatives",
    "no_derivatives",
]
