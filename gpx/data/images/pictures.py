"""Folders of pictures, one folder for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpx.data.columns.numbers import Floats
from gpx.errors import DataError

ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"))
GREY = frozenset(("1", "L", "LA", "I", "I;16", "I;16B", "F"))
"""Pillow's modes of one channel."""


def has_pictures(path: Path) -> bool:
    """Whether the folder has a folder of pictures, or ``train`` with such folders."""
    start = path / "train" if (path / "train").is_dir() else path
    return any(_pictures(folder) for folder in _folders(start))


def read_pictures(path: Path) -> tuple[list[tuple[Floats, Floats]], tuple[str, ...], str]:
    """Pictures below ``path``: pixels and classes of each part, names of classes, and a checksum.

    Args:
        path: folder of one folder for each class, or of ``train`` and ``test`` with those. Files
            and folders whose names start with a dot are ignored.

    Returns:
        One part, or the training and the test part: pixels (n, h, w), or (n, 3, h, w) where any
        picture is in colour, and classes (n,); classes are numbered by name. The checksum is of
        all names and contents.

    Raises:
        DataError: no pictures or a class without any, one that cannot be read, or pictures of
            different sizes or depths.
    """
    parted = (path / "train").is_dir()
    starts = [path / "train", path / "test"] if parted else [path]
    if parted and not starts[1].is_dir():
        raise DataError(f"{path} has a folder train and none of test; expected both, or neither")
    names = sorted({folder.name for start in starts for folder in _folders(start)})
    digest, read = hashlib.sha256(), []
    for start in starts:
        files = [
            (file, names.index(folder.name))
            for folder in _folders(start)
            for file in _pictures(folder)
        ]
        if not files:
            raise DataError(
                f"{start} has no pictures; expected a folder for each class, with files "
                f"{', '.join(sorted(ENDINGS))}"
            )
        read.append(files)
    empty = set(range(len(names))) - {number for files in read for _, number in files}
    if empty:
        raise DataError(
            f"{path}: class {names[min(empty)]!r} has no pictures; remove its folder, or add files "
            f"{', '.join(sorted(ENDINGS))}"
        )
    pictures = [[_read(file, path, digest) for file, _ in files] for files in read]
    everything = [picture for part in pictures for picture in part]
    _require_alike(path, everything, [file for files in read for file, _ in files])
    colour = any(picture.ndim == 3 for picture in everything)
    parts = []
    for part, files in zip(pictures, read, strict=True):
        stacked = np.stack([_coloured(picture) if colour else picture for picture in part])
        pixels = np.moveaxis(stacked, -1, 1) if colour else stacked
        classes = np.array([number for _, number in files], dtype=np.float64)
        parts.append((np.ascontiguousarray(pixels, np.float64), classes))
    return parts, tuple(names), digest.hexdigest()


def new_pictures(path: Path, coloured: bool) -> tuple[list[str], NDArray[np.generic]]:
    """All pictures of a folder and of folders in it: names within ``path``, and pixels.

    Args:
        path: folder. Files and folders whose names start with a dot are ignored.
        coloured: whether pixels are (n, 3, h, w); grey ones become coloured. Otherwise (n, h, w).

    Raises:
        DataError: no pictures, one that cannot be read or is in colour where grey is expected, or
            pictures of different sizes or depths.
    """
    files = sorted(
        p
        for p in path.rglob("*")
        if _is_picture(p) and not any(name.startswith(".") for name in p.relative_to(path).parts)
    )
    if not files:
        raise DataError(f"{path} has no pictures; expected files {', '.join(sorted(ENDINGS))}")
    digest, found = hashlib.sha256(), []
    for file in files:
        picture = _read(file, path, digest)
        if picture.ndim == 3 and not coloured:
            raise DataError(f"{file} is in colour, and the model is of images in grey")
        found.append(_coloured(picture) if coloured else picture)
    _require_alike(path, found, files)
    pixels = np.stack(found)
    names = [file.relative_to(path).as_posix() for file in files]
    return names, np.moveaxis(pixels, -1, 1) if coloured else pixels


def _require_alike(
    path: Path, pictures: Sequence[NDArray[np.generic]], files: Sequence[Path]
) -> None:
    first = pictures[0]
    for picture, file in zip(pictures, files, strict=True):
        if picture.shape[:2] != first.shape[:2]:
            raise DataError(
                f"{path} has images of different sizes: {files[0].relative_to(path)} of "
                f"{_size(first)} and {file.relative_to(path)} of {_size(picture)} pixels; "
                "bring them to one size first"
            )
        if (picture.itemsize > 1) != (first.itemsize > 1):
            raise DataError(
                f"{path} has pixels of different ranges: {files[0].relative_to(path)} of "
                f"{8 * first.itemsize} bits and {file.relative_to(path)} of "
                f"{8 * picture.itemsize}; bring them to one depth first"
            )


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    return sorted(filter(_is_picture, folder.iterdir()))


def _is_picture(path: Path) -> bool:
    """By its name; macOS puts a file ``._cat.png`` with attributes beside ``cat.png``."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()


def _read(file: Path, path: Path, digest: hashlib._Hash) -> NDArray[np.generic]:
    """Pixels (h, w), or (h, w, 3) of a picture in colour."""
    from PIL import Image  # not needed for other data

    digest.update(f"{file.relative_to(path).as_posix()}\0".encode())
    digest.update(file.read_bytes())
    try:
        with Image.open(file) as picture:
            if picture.mode in GREY:
                plain = picture.mode in ("1", "LA")
                return np.asarray(picture.convert("L") if plain else picture)
            return np.asarray(picture.convert("RGB"))
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a picture: {error}") from error


def _coloured(picture: NDArray[np.generic]) -> NDArray[np.generic]:
    return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=2)


def _size(picture: NDArray[np.generic]) -> str:
    return " x ".join(map(str, picture.shape[:2]))
