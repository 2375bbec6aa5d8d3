"""Reading of ranges of rows from the array in a .npy file.

The file is not mapped: mapped pages count as memory of the process, whose peak would grow with the
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.errors import DataError

NUMBERS = "biuf"
"""Kinds of NumPy dtype that are real numbers."""


@dataclass(frozen=True)
class ArrayFile:
    """A .npy file, described by its header.

    Attributes:
        path: of the file.
        rows, width: shape of the array; the width is 1 for a single axis.
        dtype: of its numbers.
        offset: position of the first row in bytes.
    """

    path: Path
    rows: int
    width: int
    dtype: np.dtype[Any]
    offset: int

    @classmethod
    def of(cls, path: Path) -> ArrayFile:
        """Read the header.

        Raises:
            DataError: not a .npy file, not rows of numbers, or fewer rows than in the header.
        """
        try:
            with open(path, "rb") as file:
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, by_columns, dtype = read(file)
                offset = file.tell()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except Exception as error:  # NumPy may raise anything on arbitrary bytes
            raise DataError(
                f"{path} is not a NumPy array, or its header is damaged; write it with numpy.save"
            ) from error
        if dtype.kind not in NUMBERS:
            raise DataError(f"{path} has dtype {dtype}, expected real numbers")
        if len(shape) not in (1, 2) or 0 in shape[1:]:
            raise DataError(f"{path} has shape {shape}, expected (n, d) or (n,)")
        if by_columns and len(shape) == 2 and 1 not in shape:
            raise DataError(
                f"{path} is stored column by column, and rows cannot be read from it; write it "
                "with numpy.save(path, numpy.ascontiguousarray(array))"
            )
        width = shape[1] if len(shape) == 2 else 1
        found = path.stat().st_size - offset
        row_bytes = width * dtype.itemsize
        if found < shape[0] * row_bytes:
            raise DataError(
                f"{path} is truncated in row {found // row_bytes + 1}: its header says {shape[0]} "
                f"rows and it holds {found // row_bytes}; write it again"
            )
        return cls(path, shape[0], width, dtype, offset)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows start..stop-1 (stop - start, width) in the dtype of the file.

        Raises:
            DataError: they cannot be read, or the file has become shorter.
        """
        count = (stop - start) * self.width
        place = self.offset + start * self.width * self.dtype.itemsize
        try:
            values = np.fromfile(self.path, self.dtype, count, offset=place)
        except OSError as error:
            raise DataError(f"{self.path}, row {start + 1}: cannot be read ({error})") from error
        if len(values) < count:
            raise DataError(
                f"{self.path} has become shorter while it was read: it ends in row "
                f"{start + len(values) // self.width + 1} of {self.rows}; restore it and resume "
                "from the last checkpoint"
            )
        return values.reshape(stop - start, self.width)
