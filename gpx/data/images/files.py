"""Images in files: the digits of the package, pictures, IDX files and NumPy archives."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpx.data.archive import array_names, read_array
from gpx.data.columns.numbers import Floats, Mask
from gpx.data.folders import checksums, find, under
from gpx.data.images.idx import read_idx
from gpx.data.images.mnist import PARTS
from gpx.data.images.pictures import has_pictures, read_pictures
from gpx.data.images.pixels import channels_first, pixel_names
from gpx.data.images.source import ImageSource
from gpx.data.table import Table
from gpx.errors import DataError, ShapeError
from gpx.tensor_checks import check_positive

DIGITS = Path(__file__).with_name("digits.csv.gz")
DIGITS_SIDE, DIGITS_RANGE = 8, 16.0
BYTE_RANGE = 255.0


class Digits(ImageSource):
    """1,797 handwritten digits of 8 x 8 pixels with values 0 to 16, included in the package.

    The test part of the optical recognition set of E. Alpaydin and C. Kaynak (UCI, CC BY 4.0), as
    in scikit-learn. Options as for ``ImageSource``.
    """

    name = "digits"

    def images(self) -> Table:
        """All rows."""
        with gzip.open(DIGITS, "rt", encoding="ascii") as file:
            numbers = np.loadtxt(file, delimiter=",")
        return Table(
            name=self.name,
            x=np.ascontiguousarray(numbers[:, :-1]),
            y=numbers[:, -1].copy(),
            input_names=pixel_names((DIGITS_SIDE, DIGITS_SIDE)),
            target_name="digit",
            notes="8 x 8 pixels / 16, neither centred nor standardised",
            origin=str(DIGITS),
            checksums=checksums([DIGITS]),
            input_unit=DIGITS_RANGE,
        )


class _Part(NamedTuple):
    pixels: Floats
    classes: Floats


class ImageFiles(ImageSource):
    """Images of the user: a folder of pictures, a NumPy archive, or IDX files named as in MNIST.

    An archive has arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``,
    which are divided into folds; x is (n, h, w), (n, h, w, c) or (n, c, h, w) with one or three
    channels. A folder of pictures has a folder for each class (``cats/1.png``, ``dogs/1.jpg``),
    divided into folds, or folders ``train`` and ``test`` with those; all pictures are of one size,
    in grey or in colour. A folder of IDX files has ``train-images-idx3-ubyte`` and
    ``train-labels-idx1-ubyte``, and the same with ``t10k`` for the test part, possibly gzipped; for
    example Fashion-MNIST, KMNIST or NOT-MNIST.

    Args:
        path: folder or .npz file, relative to ``root`` if that is given.
        pixel_range: pixels are divided by this; None: 255, or 1 if no pixel is above 1.
        train_size, noise, split, test_fraction, root, split_seed: of ``ImageSource``.
    """

    def __init__(
        self,
        path: str,
        pixel_range: float | None = None,
        train_size: int | None = None,
        noise: float = 0.0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(train_size, noise, split, test_fraction, root, split_seed)
        check_positive(pixel_range=pixel_range)
        self.path, self.pixel_range = path, pixel_range

    def images(self) -> Table:
        """All rows.

        Raises:
            DataError: files or arrays are missing or damaged, images differ in size, or numbers of
                images and labels differ.
        """
        path = under(self.root, self.path)
        if not path.exists():
            raise DataError(
                f"{path} does not exist; path= is a folder of pictures or of IDX files, or a .npz "
                "file"
            )
        names: tuple[str, ...] = ()
        if path.is_dir() and has_pictures(path):
            found, names, checksum = read_pictures(path)
            parts, sums = [_Part(*part) for part in found], {path.name: checksum}
        else:
            parts, used = _folder(path) if path.is_dir() else (_archive(path), [path])
            sums = checksums(used)
        shapes = {part.pixels.shape[1:] for part in parts}
        if len(shapes) != 1:
            raise DataError(
                f"{path} has images of different sizes: "
                f"{' and '.join(' x '.join(map(str, s)) for s in sorted(shapes))}; resize them to "
                "one size first"
            )
        masks: Mask | None = None
        if len(parts) == 2:
            masks = np.repeat([False, True], [len(part.pixels) for part in parts])[:, None]
        pixels = np.concatenate([part.pixels for part in parts])
        unit = self.pixel_range
        if unit is None:
            unit = BYTE_RANGE if pixels.max() > 1.0 else 1.0
        return Table(
            name=path.name.removesuffix(".npz"),
            x=pixels.reshape(len(pixels), -1),
            y=np.concatenate([part.classes for part in parts]),
            input_names=pixel_names(pixels.shape[1:]),
            target_name="class",
            test_masks=masks,
            notes=f"{' x '.join(map(str, pixels.shape[1:]))} pixels / {unit:g}",
            origin=str(path),
            checksums=sums,
            input_unit=unit,
            class_names=names,
        )


def _checked(pixels: Floats, classes: Floats, where: str) -> _Part:
    """One part with channels first; raises DataError unless every image has a class."""
    try:
        pixels = channels_first(pixels)
    except ShapeError as error:
        raise DataError(f"{where} has {error}") from error
    if not pixels.size or classes.shape != (len(pixels),):
        raise DataError(
            f"{where} has images of shape {pixels.shape} and labels of shape {classes.shape}; "
            "expected images, and one label for each of them"
        )
    return _Part(np.ascontiguousarray(pixels, np.float64), classes.astype(np.float64))


def _archive(path: Path) -> list[_Part]:
    names = array_names(path)
    ends = ("_train", "_test") if "x_train" in names else ("",)
    missing = [f"{letter}{end}" for end in ends for letter in "xy" if f"{letter}{end}" not in names]
    if missing:
        raise DataError(
            f"{path} has no array {missing[0]!r}, it has {', '.join(names) or 'none'}; an archive "
            "of images has x and y, or x_train, y_train, x_test and y_test"
        )
    return [
        _checked(
            read_array(path, f"x{end}", "path"), read_array(path, f"y{end}", "path"), str(path)
        )
        for end in ends
    ]


def _folder(path: Path) -> tuple[list[_Part], list[Path]]:
    parts, used = [], []
    for part in PARTS.values():
        images, labels = find([path], *part.images), find([path], *part.labels)
        if images is None or labels is None:
            raise DataError(
                f"{path} has no {part.images[0] if images is None else part.labels[0]} (gzipped "
                "or not); a folder of images has a folder of pictures for each class, or the four "
                "IDX files by MNIST's names"
            )
        pixels, classes = read_idx(images, 3), read_idx(labels, 1)
        parts.append(_checked(pixels.astype(np.float64), classes.astype(np.float64), str(images)))
        used += [images, labels]
    return parts, used
