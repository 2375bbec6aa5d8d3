"""The files of a stream as one long table: inputs and targets, row after row, part after part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.data.stream.array_file import ArrayFile
from gpx.data.table import numbered_names
from gpx.errors import DataError

Target = int | str | Sequence[int | str] | None


@dataclass(frozen=True)
class Part:
    """Rows that lie in one file, or in a file of inputs and one of targets beside it.

    Attributes:
        inputs: file of the inputs, or of all columns.
        targets: file of the targets; None: they are columns of ``inputs``.
        columns: those of ``inputs`` that are taken, inputs first, then targets; None: all.
    """

    inputs: ArrayFile
    targets: ArrayFile | None = None
    columns: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.inputs.rows

    @property
    def files(self) -> tuple[ArrayFile, ...]:
        """One or two."""
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
        """Where a column of ``read`` comes from."""
        beside = self.targets is not None and column >= self.inputs.width
        return self.targets.path if beside and self.targets is not None else self.inputs.path


class Parts:
    """All parts in a row.

    Args:
        parts: at least one, of equal columns.
        num_inputs: d; the further columns are targets.
        input_names, target_names: of the columns.

    Raises:
        DataError: columns or lengths that do not agree, or no rows.
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
                        "all parts of a stream have the same columns"
                    )
            if part.targets is not None and part.targets.rows != part.rows:
                raise DataError(
                    f"{part.inputs.path} has {part.rows} rows and {part.targets.path} has "
                    f"{part.targets.rows}; inputs and targets belong together row by row"
                )
        self.starts = np.cumsum([0, *(part.rows for part in self.parts)])
        if len(self) == 0:
            raise DataError(f"{first.inputs.path.parent} has arrays without rows")

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
        """File, row in it and column of a number, for messages; both count from one."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        name = (*self.input_names, *self.target_names)[column]
        inside = row - int(self.starts[number]) + 1
        return f"{self.parts[number].file_of(column)}, row {inside}, column {name!r}"


def find_parts(path: Path, target: Target) -> Parts:
    """The parts that ``path`` names.

    Args:
        path: a .npy file of inputs, with ``target`` the file of targets; a .npy file with the
            target among its columns; or a folder of parts in the order of their names, either
            pairs ``x*.npy`` and ``y*.npy`` (``x_000.npy`` with ``y_000.npy``) or files with all
            columns.
        target: number of the target's column (negative from the end) or a list of several, None:
            the last; or, for a file of inputs, the .npy file of targets. None or "y" for pairs.

    Raises:
        DataError: nothing there, or nothing that fits.
    """
    if not path.exists():
        raise DataError(f"there is no {path}")
    if isinstance(target, str) and target.endswith(".npy"):
        beside = path.parent / target
        if path.is_dir() or not beside.exists():
            where = f"{path} is a folder" if path.is_dir() else f"there is no {beside}"
            raise DataError(
                f"target={target} names a file of targets beside a file of inputs, and {where}"
            )
        return _pairs([(path, beside)])
    files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
    if not files:
        raise DataError(
            f"{path} holds no .npy files: expected pairs x_000.npy and y_000.npy, or tables with "
            "the target among their columns"
        )
    names = {file.name for file in files}
    xs = [file for file in files if file.name.startswith("x")]
    if path.is_dir() and xs and any(name.startswith("y") for name in names):
        if target not in (None, "y"):
            raise DataError(
                f"target={target} is not there: {path} holds pairs x*.npy and y*.npy, whose "
                "target is y; leave target= out"
            )
        pairs = [(file, file.with_name("y" + file.name[1:])) for file in xs]
        partners = {name for pair in pairs for name in (pair[0].name, pair[1].name)}
        odd = sorted(partners ^ names)
        if odd:
            raise DataError(
                f"{path}: {odd[0]} is {'missing' if odd[0] in partners else 'there alone'}; "
                "every x*.npy needs a y*.npy with the same rest of its name"
            )
        return _pairs(pairs)
    return _tables(files, target)


def _pairs(pairs: Sequence[tuple[Path, Path]]) -> Parts:
    parts = [Part(ArrayFile.of(x), ArrayFile.of(y)) for x, y in pairs]
    first = parts[0]
    assert first.targets is not None
    outputs = first.targets.width
    names = ("y",) if outputs == 1 else numbered_names(outputs, "y")
    return Parts(parts, first.inputs.width, numbered_names(first.inputs.width), names)


def _tables(files: Sequence[Path], target: Target) -> Parts:
    arrays = [ArrayFile.of(file) for file in files]
    width = arrays[0].width
    if width < 2:
        raise DataError(
            f"{arrays[0].path} has one column, expected inputs and a target; name the file of "
            "targets, target=y.npy, where they are apart"
        )
    asked = [-1] if target is None else [target] if isinstance(target, (int, str)) else list(target)
    chosen: list[int] = []
    for column in asked:
        number = int(column) if str(column).lstrip("-").isdigit() else None
        if number is None or not -width <= number < width:
            raise DataError(
                f"{arrays[0].path} has no column {column}: its {width} columns have no names, "
                f"give the target's number, 0 to {width - 1} or -1 for the last"
            )
        chosen.append(number % width)
    inputs = [i for i in range(width) if i not in chosen]
    if not inputs or not chosen or len(set(chosen)) < len(chosen):
        raise DataError(
            f"{arrays[0].path}: target={target} leaves {len(inputs)} inputs and names "
            f"{len(set(chosen))} columns; expected different columns, and inputs beside them"
        )
    names = numbered_names(width)
    targets = ("y",) if len(chosen) == 1 else numbered_names(len(chosen), "y")
    parts = [Part(array, columns=(*inputs, *chosen)) for array in arrays]
    return Parts(parts, len(inputs), [names[i] for i in inputs], targets)
