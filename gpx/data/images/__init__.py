"""Data sets of labelled images."""

from gpx.data.images.fields import Fields
from gpx.data.images.files import Digits, ImageFiles
from gpx.data.images.glyphs import Glyphs
from gpx.data.images.mnist import MNIST, MNISTParity
from gpx.data.images.source import ImageSource

__all__ = ["MNIST", "Digits", "Fields", "Glyphs", "ImageFiles", "ImageSource", "MNISTParity"]
