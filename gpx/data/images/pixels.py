"""Conversion of images to rows of pixels, and names of pixels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.errors import ShapeError

CHANNELS = (1, 3)
"""Accepted numbers of channels."""


def pixel_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the pixels of images (h, w) or (c, h, w): pixel3_5, or pixel0_3_5."""
    return tuple("pixel" + "_".join(map(str, place)) for place in np.ndindex(*shape))


def pixel_shape(names: Sequence[str]) -> tuple[int, ...] | None:
    """The shape (h, w) or (c, h, w) whose ``pixel_names`` these are; None if there is none."""
    last = re.fullmatch(r"pixel(\d+)_(\d+)(?:_(\d+))?", names[-1]) if names else None
    if last is None:
        return None
    shape = tuple(int(place) + 1 for place in last.groups() if place is not None)
    return (
        shape if int(np.prod(shape)) == len(names) and pixel_names(shape) == tuple(names) else None
    )


def channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """Images (n, h, w), (n, c, h, w) or (n, h, w, c) with the channels c moved before h.

    Raises:
        ShapeError: other arrays.
    """
    if images.ndim == 4 and images.shape[-1] in CHANNELS and images.shape[1] not in CHANNELS:
        return np.moveaxis(images, -1, 1)
    if images.ndim != 3 and (images.ndim != 4 or images.shape[1] not in CHANNELS):
        raise ShapeError(
            f"images of shape {images.shape}: expected (n, h, w), or (n, h, w, c) with one or "
            "three channels c"
        )
    return images


def pixel_rows(images: NDArray[Any], names: Sequence[str]) -> NDArray[Any]:
    """Images as rows of pixels (n, d), for a model whose inputs are pixels with these names.

    Args:
        images: one or several images of the shape given by the names, channels first or last; other
            arrays, such as rows of pixels, are returned unchanged.
        names: of the d pixels.

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
            f"the model takes images of {' x '.join(map(str, own[1:]))} pixels with {own[0]} "
            f"channel{'s' if own[0] > 1 else ''}, got an array of shape {images.shape}"
        )
    return found.reshape(len(found), int(np.prod(own)))
