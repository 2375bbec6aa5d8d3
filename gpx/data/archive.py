"""Reading of arrays from NumPy archives (.npz), without unpickling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.data.columns.numbers import would_round
from gpx.errors import DataError

NUMBERS, ANY = "biuf", "biufUM"
"""Kinds of dtype: real numbers; and real numbers, texts or dates."""


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An open NumPy archive; raises DataError for anything else."""
    # opened here, as NumPy does not close damaged archives
    with open(path, "rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # NumPy may raise anything on arbitrary bytes
            raise DataError(
                f"{path} is not a NumPy archive or is damaged; write it with numpy.savez"
            ) from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path} holds a single array, expected an archive written by numpy.savez"
            )
        yield archive


def array_names(path: Path) -> list[str]:
    """Names of the arrays of a .npz file; raises DataError for another file."""
    with _opened(path) as archive:
        return list(archive.files)


def read_array(
    path: Path, key: str, option: str, kinds: str = NUMBERS, texts: bool = False
) -> NDArray[Any]:
    """One array of a .npz file, numbers as float64.

    Args:
        path: of the file.
        key: name of the array.
        option: that gives the name, for error messages.
        kinds: accepted kinds of dtype.
        texts: read whole numbers as text, of any length; so are in any case those that float64
            would round, if ``kinds`` has texts.

    Raises:
        DataError: not an archive, no such array, or another kind of dtype.
    """
    with _opened(path) as archive:
        if key not in archive.files:
            raise DataError(
                f"{path} has no array {key!r}, it has {', '.join(archive.files) or 'none'}; "
                f"choose one with {option}="
            )
        try:
            array = archive[key]
        except Exception as error:  # NumPy may raise anything on arbitrary bytes
            if "Object arrays" in str(error):
                raise DataError(
                    f"{path}: array {key!r} holds objects, expected numbers in rows of equal size; "
                    "resize images to one size first"
                ) from error
            raise DataError(
                f"{path}: array {key!r} cannot be read ({error}); write it with numpy.savez"
            ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {key!r} is not an array; write it with numpy.savez")
    if array.dtype.kind not in kinds:
        raise DataError(f"{path}: array {key!r} has dtype {array.dtype}, expected real numbers")
    if (texts and array.dtype.kind in "iu") or ("U" in kinds and would_round(array)):
        return array.astype(str)
    return array.astype(np.float64) if array.dtype.kind in NUMBERS else array
