from __future__ import annotations

import numpy as np
import pytest

from gpx.data.images.pixels import channels_first, pixel_names, pixel_rows, pixel_shape
from gpx.errors import ShapeError


@pytest.mark.parametrize("shape", [(2, 3), (3, 4, 5), (1, 1)])
def test_names_tell_the_shape(shape: tuple[int, ...]) -> None:
    assert pixel_shape(pixel_names(shape)) == shape
    assert pixel_shape((*pixel_names(shape)[1:], "pixel0_0")) is None or shape == (1, 1)
    assert pixel_shape(("a", *pixel_names(shape))) is None
    assert pixel_shape(()) is None


def test_images_become_rows_of_pixels() -> None:
    grey, colour = pixel_names((2, 3)), pixel_names((3, 2, 4))
    images = np.arange(12.0).reshape(2, 2, 3)
    np.testing.assert_array_equal(pixel_rows(images, grey), images.reshape(2, 6))
    np.testing.assert_array_equal(pixel_rows(images[0], grey), images[:1].reshape(1, 6))
    np.testing.assert_array_equal(pixel_rows(images[..., None], grey), images.reshape(2, 6))
    coloured = np.arange(48.0).reshape(2, 3, 2, 4)
    rows = coloured.reshape(2, 24)
    for given in (coloured, np.moveaxis(coloured, 1, -1), rows):
        np.testing.assert_array_equal(pixel_rows(given, colour), rows)
    np.testing.assert_array_equal(pixel_rows(np.moveaxis(coloured[0], 0, -1), colour), rows[:1])
    assert pixel_rows(images[:0], grey).shape == (0, 6)
    # what is no image is left to whoever asks
    assert pixel_rows(images, ("a", "b")) is images
    assert pixel_rows(images[0, 0], grey) is not None


@pytest.mark.parametrize("shape", [(2, 3, 2), (5, 2, 3, 3), (5, 3, 2, 3), (2, 1, 1, 2, 3)])
def test_other_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ShapeError, match="takes images of 2 x 3 pixels with 1 channel, got an array"
    ):
        pixel_rows(np.zeros(shape), pixel_names((2, 3)))
    with pytest.raises(
        ShapeError, match="takes images of 2 x 4 pixels with 3 channels, got an array"
    ):
        pixel_rows(np.zeros(shape), pixel_names((3, 2, 4)))


def test_channels_are_one_or_three() -> None:
    assert channels_first(np.zeros((5, 4, 6, 3))).shape == (5, 3, 4, 6)
    assert channels_first(np.zeros((5, 3, 6, 4))).shape == (5, 3, 6, 4)
    with pytest.raises(ShapeError, match=r"images of shape \(5, 4, 6, 4\): expected"):
        channels_first(np.zeros((5, 4, 6, 4)))
