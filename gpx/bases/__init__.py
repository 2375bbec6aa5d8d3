"""Finite feature maps phi: R^d -> R^m with a weight prior."""

from gpx.bases.base import Basis
from gpx.bases.counter_random import philox4x32, standard_normals
from gpx.bases.dictionary import KernelDictionary
from gpx.bases.random_fourier import RandomFourier

__all__ = ["Basis", "KernelDictionary", "RandomFourier", "philox4x32", "standard_normals"]
