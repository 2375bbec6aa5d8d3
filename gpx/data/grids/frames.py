"""A folder of images or video frames, possibly with a mask, as a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.data.folders import MASK_CHECKSUM, checksums, under
from gpx.data.grids.values import GridSource, GridValues
from gpx.errors import DataError
from gpx.tensor_checks import check_at_least

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm")

WHITE_16_BITS = 65535.0
"""White in grey images with 16 bits, which are read as 32-bit integers."""


class FrameFolder(GridSource):
    """Images of equal size in a folder, in the order of their names, as a grid with gaps.

    Colours are averaged to a brightness between 0 and 1. Files whose names begin with a dot, which
    file systems hide, are no images of the folder. The axes are row and column for a single
    image, and frame, row and column for several.

    Args:
        path: folder of the images.
        mask: an image (non-zero for observed pixels) for all frames, or a folder with an image of
            the same name for each frame; None: everything is observed.
        scale: every ``scale``-th pixel is kept along each side.
        hold_out, hold_out_axis, split, test_fraction, root, split_seed: see ``GridSource``.

    Raises:
        ConfigError: ``scale`` below 1.
    """

    def __init__(
        self,
        path: str,
        mask: str | None = None,
        scale: int = 1,
        hold_out: str = "cells",
        hold_out_axis: int = 0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(hold_out, hold_out_axis, None, split, test_fraction, root, split_seed)
        self.path = path
        self.mask = mask
        check_at_least(1, scale=scale)
        self.scale = scale

    def grid(self) -> GridValues:
        """Read all images.

        Raises:
            DataError: no images, different sizes, a mask of another shape, unreadable files.
        """
        folder = under(self.root, self.path)
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; path= must name a folder of images")
        files = sorted(
            file
            for file in folder.iterdir()
            if file.suffix.lower() in SUFFIXES
            and not file.name.startswith(".")
            and not file.is_dir()
        )
        if not files:
            raise DataError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
        step = self.scale
        frames = [brightness(file)[::step, ::step] for file in files]
        for file, frame in zip(files, frames, strict=True):
            if frame.shape != frames[0].shape:
                raise DataError(
                    f"{file} has {frame.shape} pixels and {files[0].name} {frames[0].shape}; "
                    "expected frames of equal size"
                )
        if self.mask is not None:
            for file, frame in zip(files, frames, strict=True):
                observed = brightness(self._mask(file))[::step, ::step]
                if observed.shape != frame.shape:
                    raise DataError(
                        f"the mask of {file.name} has shape {observed.shape}, the image "
                        f"{frame.shape}; expected the same"
                    )
                frame[observed == 0.0] = np.nan
        values = np.stack(frames)
        names = (("frame",), ("row",), ("column",))
        if len(frames) == 1:
            values, names = values[0], names[1:]  # type: ignore[assignment]
        return GridValues(
            name=folder.name,
            axes=tuple(np.arange(m, dtype=np.float64) for m in values.shape),
            axis_names=names,
            values=values,
            value_name="brightness",
            origin=str(folder),
            checksums=checksums(files) | self._checksums_of_masks(files),
        )

    def _mask(self, file: Path) -> Path:
        assert self.mask is not None
        where = under(self.root, self.mask, "mask")
        found = where / file.name if where.is_dir() else where
        if not found.is_file():
            raise DataError(f"there is no mask {found} for the frame {file.name}")
        return found

    def _checksums_of_masks(self, files: Sequence[Path]) -> dict[str, str]:
        if self.mask is None:
            return {}
        found = checksums(dict.fromkeys(map(self._mask, files)))
        return {MASK_CHECKSUM + name: digest for name, digest in found.items()}


def brightness(path: Path) -> Floats:
    """Brightness (rows, columns) of an image between 0 and 1; colours are averaged.

    Raises:
        DataError: the file cannot be read as an image, or its value of white is not known.
    """
    from matplotlib.image import imread
    from PIL import Image

    try:
        with Image.open(path) as image:
            wide = image.mode in ("I", "F")  # imread would clip these to 8 bits
            pixels = np.asarray(image if wide else imread(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read as an image ({error})") from error
    if wide and (pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > WHITE_16_BITS):
        raise DataError(
            f"{path} holds {pixels.dtype} pixels up to {pixels.max():g}, and it is not known which "
            "value is white; save it with 8 or 16 bits per channel"
        )
    scale = float(np.iinfo(pixels.dtype).max) if pixels.dtype.kind == "u" else 1.0
    scale = WHITE_16_BITS if wide else scale
    if pixels.ndim == 3:
        pixels = pixels[:, :, : 1 if pixels.shape[2] <= 2 else 3].mean(axis=2)
    return np.array(pixels, dtype=np.float64) / scale
