"""Reading of published sets: gzipped numbers, separated by commas, without a header."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.errors import DataError


def packed_numbers(path: Path, columns: int, rows: int | None = None) -> Floats:
    """All numbers of a file (rows, columns).

    Args:
        path: of the file.
        columns: expected number of columns.
        rows: expected number of rows; None: any.

    Raises:
        DataError: the file is damaged, or has another size.
    """
    try:
        found = np.loadtxt(path, delimiter=",", ndmin=2)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and fetch it again") from error
    if found.shape != (len(found) if rows is None else rows, columns):
        expected = "" if rows is None else f"{rows} rows of "
        raise DataError(
            f"{path} holds {found.shape[0]} rows of {found.shape[1]} columns, expected {expected}"
            f"{columns} columns; fetch the file again"
        )
    return found
