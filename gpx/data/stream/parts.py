"""The files of a stream as one long table of inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.data.stream.array_file import ArrayFile
from gpx.errors import DataError

Target = int | str | Sequence[int | str] | None


@dataclass(frozen=True)
class Part:
    """Rows of one file, or of a file of inputs and a file of targets.

    Attributes:
        inputs: file of the inputs, or of all columns.
        targets: file of the targets; None: they are columns of ``inputs``.
        columns: columns of ``inputs`` to use, inputs first, then targets; None: all.
        shown: file to name in messages, if ``inputs`` was converted from another file.
    """

    inputs: ArrayFile
    targets: ArrayFile | None = None
    columns: tuple[int, ...] | None = None
    shown: Path | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.inputs.rows

    @property
    def files(self) -> tuple[ArrayFile, ...]:
        """The file, or the two files."""
        return (self.inputs,) if self.targets is None else (self.inputs, self.targets)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1, inputs then targets: (stop - start, d + p)."""
        values = self.inputs.read(start, stop)
        if self.columns is not None:
            values = values[:, self.columns]
        if self.targets is None:
            return values
        return np.concatenate([values, self.targets.read(start, stop)], axis=1)

    def file_of(self, column: int) -> Path:
        """File of a column of ``read``."""
        if self.shown is not None:
            return self.shown
        beside = self.targets is not None and column >= self.inputs.width
        return self.targets.path if beside and self.targets is not None else self.inputs.path


class Parts:
    """All parts of a stream, in order.

    Args:
        parts: at least one, with equal columns.
        num_inputs: d; further columns are targets.
        input_names, target_names: of the columns.

    Raises:
        DataError: columns or lengths do not match, or there are no rows.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        num_inputs: int,
        input_names: Sequence[str],
        target_names: Sequence[str],
    ) -> None:
        self.parts = list(parts)
        self.num_inputs = num_inputs
        self.input_names, self.target_names = tuple(input_names), tuple(target_names)
        first = self.parts[0]
        for part in self.parts:
            for file, like in zip(part.files, first.files, strict=True):
                if file.width != like.width:
                    raise DataError(
                        f"{file.path} has {file.width} columns and {like.path} has {like.width}: "
                        "all files of a stream must have the same columns"
                    )
            if part.targets is not None and part.targets.rows != part.rows:
                raise DataError(
                    f"{part.inputs.path} has {part.rows} rows and {part.targets.path} has "
                    f"{part.targets.rows}; expected a target for each row of inputs"
                )
        self.starts = np.cumsum([0, *(part.rows for part in self.parts)])
        if len(self) == 0:
            path = first.inputs.path
            where = path if len(self.parts) == 1 and first.targets is None else path.parent
            raise DataError(f"{where} holds no rows")

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def width(self) -> int:
        """d + p."""
        return self.num_inputs + len(self.target_names)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the files."""
        return sum(file.width * file.dtype.itemsize for file in self.parts[0].files)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 of the stream, inputs then targets: (stop - start, d + p)."""
        pieces = []
        place = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            begin, end = int(self.starts[place]), min(int(self.starts[place + 1]), stop)
            if end > start:
                pieces.append(self.parts[place].read(start - begin, end - begin))
            start, place = max(start, end), place + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def place(self, row: int, column: int) -> str:
        """Description of a number for messages: file, row and column, counted from one."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        name = (*self.input_names, *self.target_names)[column]
        inside = row - int(self.starts[number]) + 1
        return f"{self.parts[number].file_of(column)}, row {inside}, column {name!r}"
