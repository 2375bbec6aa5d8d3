"""Images as rows of pixels, and the names that say where each pixel is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.errors import ShapeError

COLOURS = (1, 3)
"""Channels of an image whose channels may come last."""


def pixel_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the pixels of images (h, w) or (c, h, w): pixel3_5, or pixel0_3_5."""
    return tuple("pixel" + "_".join(map(str, place)) for place in np.ndindex(*shape))


def pixel_shape(names: Sequence[str]) -> tuple[int, ...] | None:
    """The shape (h, w) or (c, h, w) of which these are the ``pixel_names``; None: of none."""
    last = re.fullmatch(r"pixel(\d+)_(\d+)(?:_(\d+))?", names[-1]) if names else None
    if last is None:
        return None
    shape = tuple(int(place) + 1 for place in last.groups() if place is not None)
    return (
        shape if int(np.prod(shape)) == len(names) and pixel_names(shape) == tuple(names) else None
    )


def channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """Images (n, h, w), (n, c, h, w) or (n, h, w, c) with one or three channels c before h.

    Raises:
        ShapeError: other arrays.
    """
    if images.ndim == 4 and images.shape[-1] in COLOURS and images.shape[1] not in COLOURS:
        return np.moveaxis(images, -1, 1)
    if images.ndim != 3 and (images.ndim != 4 or images.shape[1] not in COLOURS):
        raise ShapeError(
            f"images of shape {images.shape}: expected (n, h, w), or (n, h, w, c) with one or "
            "three channels c"
        )
    return images


def pixel_rows(images: NDArray[Any], names: Sequence[str]) -> NDArray[Any]:
    """Rows of pixels (n, d) of images for a model whose inputs are pixels of these names.

    Args:
        images: one or several of the shape that the names tell, channels first or last; anything
            else, rows of pixels among it, is handed back as it is.
        names: d of them.

    Raises:
        ShapeError: images of another size or with other channels.
    """
    shape = pixel_shape(names)
    if shape is None or images.shape == shape:
        return images if shape is None else images.reshape(1, -1)
    if images.ndim < 3:
        return images
    own = (1, *shape)[-3:]
    several = images if images.ndim != 3 or len(shape) == 2 else images[None]
    last = several.ndim == 4 and several.shape[1:] != own
    found = np.moveaxis(several, -1, 1) if last else several
    if found.ndim > 4 or (1, *found.shape[1:])[-3:] != own:
        raise ShapeError(
            f"the model is of images of {' x '.join(map(str, own[1:]))} pixels with {own[0]} "
            f"channel{'s' if own[0] > 1 else ''}, got an array of shape {images.shape}"
        )
    return found.reshape(len(found), int(np.prod(own)))
