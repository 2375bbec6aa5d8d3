"""One array in a .npy file, of which ranges of rows are read without holding the rest.

Rows are read, not mapped: pages of a mapped file count as memory of the process until the operating
system takes them back, so that the peak would grow with the file.
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
    """A .npy file as its header describes it, its length checked against that.

    Attributes:
        path: of the file.
        rows, width: of the array; one of a single axis has width 1.
        dtype: of its numbers.
        offset: bytes before the first row.
        flat: whether the array has a single axis.
    """

    path: Path
    rows: int
    width: int
    dtype: np.dtype[Any]
    offset: int
    flat: bool

    @classmethod
    def of(cls, path: Path) -> ArrayFile:
        """Read the header.

        Raises:
            DataError: no .npy file, not rows of numbers, or fewer rows than the header says.
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
        except Exception as error:  # NumPy's readers can raise anything on foreign bytes
            raise DataError(
                f"{path} is not an array of NumPy or its header is damaged; write it with "
                "numpy.save"
            ) from error
        if dtype.kind not in NUMBERS:
            raise DataError(f"{path} has dtype {dtype}, expected real numbers")
        if len(shape) not in (1, 2) or 0 in shape[1:]:
            raise DataError(f"{path} has shape {shape}, expected (n, d) or (n,)")
        if by_columns and len(shape) == 2 and 1 not in shape:
            raise DataError(
                f"{path} is stored column by column, so that a row lies all over the file; write "
                "it with numpy.save(path, numpy.ascontiguousarray(array))"
            )
        width = shape[1] if len(shape) == 2 else 1
        found = path.stat().st_size - offset
        row_bytes = width * dtype.itemsize
        if found < shape[0] * row_bytes:
            raise DataError(
                f"{path} is cut short in row {found // row_bytes + 1}: its header says {shape[0]} "
                f"rows and it holds {found // row_bytes}; write it again"
            )
        return cls(path, shape[0], width, dtype, offset, len(shape) == 1)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 (stop - start, width) in the file's own dtype.

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
                f"{start + len(values) // self.width + 1} of {self.rows}; restore it and go on "
                "from the last checkpoint"
            )
        return values.reshape(stop - start, self.width)
