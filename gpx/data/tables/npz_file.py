"""Your own data: delimited text and NumPy archives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpx.data.columns.column import Values
from gpx.data.columns.delimited import Layout, existing_file, sniff
from gpx.data.columns.frame import (
    Frame,
    array_frame,
    named_column,
    places,
    plain_values,
    read_frame,
)
from gpx.data.folders import sha256
from gpx.data.source import DataSource
from gpx.data.table import Floats, Mask, Table, numbered_names
from gpx.data.tables.column_options import ColumnOptions, Rows, table_of
from gpx.data.tables.table_file import AUTO, TableFile, as_list, under
from gpx.errors import DataError

PLAIN, ANY = "biuf", "biufUM"
"""Kinds of dtype: real numbers; these, texts and dates."""


class CSVFile(TableFile):
    """A delimited text file, gzipped or not: one row per observation; options as for ``TableFile``.

    Comma, semicolon, tab or white space between columns and a header line are recognised. The words
    true and false count as 1 and 0.
    """

    def layout(self, path: Path) -> Layout:
        """Delimiter and names."""
        return sniff(path, self.header)

    def frame(self, layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
        """Some columns, line by line where they are no plain numbers."""
        return read_frame(layout, columns, texts)


class NPZFile(DataSource):
    """A NumPy archive: inputs (n, d) and targets (n,) or (n, p), or an array for every column.

    Args:
        path: of the .npz file.
        x: name of the array of inputs, real numbers (n, d); or the names of arrays (n,), one for
            each column, of numbers, texts or dates (datetime64).
        y: name of the array of targets; texts are classes.
        test: name of an array (n,) or (n, k) that marks test rows, one column for each split; None
            cuts the rows into random folds.
        input_names: of the d columns of x; None calls them x1, x2, ..., or as the arrays are.
        target_name: None takes the name of the array of targets.
        target_names: of the p > 1 columns of y; None calls them y1, y2, ...
        split, test_fraction, root, split_seed: as for every source; a relative ``path`` is looked
            for in ``root`` when that is given.
        noise, weights: names of arrays (n,): known noise variances of the targets, and how many
            rows each one stands for; as for ``TableFile``.
        missing, categories, dates, date_format, unseen, max_categories, target_transform: as for
            ``TableFile``, with columns by name; NaN, NaT and empty texts are missing values.
    """

    def __init__(
        self,
        path: str,
        x: str | Sequence[str] = "x",
        y: str = "y",
        test: str | None = None,
        input_names: Sequence[str] | None = None,
        target_name: str | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
        target_names: Sequence[str] | None = None,
        missing: str = "refuse",
        categories: str | Sequence[str] = AUTO,
        dates: str | Sequence[str] = AUTO,
        date_format: str | None = None,
        unseen: str = "apart",
        max_categories: int = 100,
        noise: str | None = None,
        weights: str | None = None,
        target_transform: str | None = None,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        self.path = path
        self.x = x if isinstance(x, str) else list(x)
        self.y = y
        self.test = test
        self.input_names = None if input_names is None else tuple(map(str, input_names))
        self.target_name = target_name
        self.noise, self.weights = noise, weights
        self.target_transform = target_transform
        self.target_names = None if target_names is None else tuple(map(str, target_names))
        self.options = ColumnOptions(
            missing,
            unseen,
            None if categories == AUTO else tuple(map(str, as_list(categories))),
            None if dates == AUTO else tuple(map(str, as_list(dates))),
            date_format,
            max_categories,
            noise=noise,
        )

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: no such file or array, not numbers, shapes that do not agree.
        """
        path = existing_file(under(self.root, self.path))
        inputs, targets = self._inputs(path), self._targets(path)
        about: dict[str, Any] = {
            "name": path.stem,
            "test_masks": self._masks(path),
            "origin": str(path),
            "checksums": {path.name: sha256(path)},
            "target_transform": self.target_transform,
        }
        rows = len(targets) if isinstance(targets, Frame) or targets.ndim else 0
        further = {
            name: self._of_rows(path, array, rows, name)
            for name, array in (("noise", self.noise), ("weights", self.weights))
            if array is not None
        }
        if not isinstance(inputs, Frame) and not isinstance(targets, Frame):
            odd = inputs.ndim != 2 or targets.ndim not in (1, 2)  # which the table refuses
            if odd or (not further and self.options.plain):
                return self._plain_table(inputs, targets, about)
        if not isinstance(inputs, Frame):
            names = self._input_names(inputs.shape[-1] if inputs.ndim else 0)
            inputs = array_frame(inputs, names, str(path))
        if not isinstance(targets, Frame):
            names = self._target_names(targets) or (self.target_name or self.y,)
            targets = array_frame(targets.reshape(rows, -1), names, str(path))
        if len(inputs) != len(targets):
            raise DataError(
                f"{path} has {len(inputs)} rows of inputs and {len(targets)} targets; expected the "
                "same number"
            )
        for name in (*(self.options.categories or ()), *(self.options.dates or ())):
            named_column((*inputs.names, *targets.names), name, str(path))
        return table_of(Rows(inputs, targets, **further), None, self.options, **about)

    def _plain_table(self, inputs: Floats, targets: Floats, about: dict[str, Any]) -> Table:
        return Table(
            x=np.ascontiguousarray(inputs),
            y=np.ascontiguousarray(targets),
            input_names=self._input_names(inputs.shape[-1] if inputs.ndim else 0),
            target_name=self.target_name or self.y,
            target_names=self._target_names(targets),
            **about,
        )

    def _target_names(self, targets: Floats) -> tuple[str, ...]:
        """Of several targets (n, p); of one none."""
        if self.target_names:
            return self.target_names
        return numbered_names(targets.shape[1], "y") if targets.ndim == 2 else ()

    def _of_rows(self, path: Path, name: str, rows: int, option: str) -> Frame:
        """An array with a number for each row."""
        values = read_array(path, name, option)
        if values.shape != (rows,):
            raise DataError(
                f"{path}: array {name!r} of {option}= has shape {values.shape}, expected ({rows},)"
            )
        return Frame((name,), (values,), str(path), places(str(path), (name,), "data row"))

    def _inputs(self, path: Path) -> Floats | Frame:
        if isinstance(self.x, str):
            x = read_array(path, self.x, "x")
            return x[:, None] if x.ndim == 1 else x
        columns = [self._column(path, name, "x") for name in self.x]
        names = self.input_names or tuple(self.x)
        if not columns or len(names) != len(columns) or len({len(c) for c in columns}) > 1:
            raise DataError(
                f"{path}: the {len(columns)} arrays of x= have {[len(c) for c in columns]} rows "
                f"and {len(names)} names; expected equal lengths, and a name for each"
            )
        return Frame(names, tuple(columns), str(path), places(str(path), names, "data row"))

    def _targets(self, path: Path) -> Floats | Frame:
        y = read_array(path, self.y, "y", PLAIN if self.target_names else ANY)
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y.dtype.kind == "f":
            return y
        if y.ndim != 1 or y.dtype.kind == "M":
            raise DataError(
                f"{path}: array {self.y!r} has dtype {y.dtype} and shape {y.shape}, expected real "
                "numbers, or texts (n,) for classes"
            )
        names = (self.target_name or self.y,)
        values = plain_values(y, self.y)
        return Frame(names, (values,), str(path), places(str(path), names, "data row"))

    def _column(self, path: Path, name: str, option: str) -> Values:
        array = read_array(path, name, option, ANY)
        if array.ndim != 1:
            raise DataError(f"{path}: array {name!r} has shape {array.shape}, expected (n,)")
        return plain_values(array, name)

    def _input_names(self, columns: int) -> tuple[str, ...]:
        return self.input_names or numbered_names(columns)

    def _masks(self, path: Path) -> Mask | None:
        if self.test is None:
            return None
        marks = read_array(path, self.test, "test")
        if marks.ndim not in (1, 2) or not np.isin(marks, (0.0, 1.0)).all():
            raise DataError(
                f"{path}: array {self.test!r} of shape {marks.shape} must mark test rows by 1 "
                "and the others by 0, one column for each split"
            )
        return marks.reshape(len(marks), -1).astype(bool)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A NumPy archive; raises DataError for anything else."""
    # opened here, because numpy leaves a damaged archive open
    with open(path, "rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # NumPy's readers can raise anything on foreign bytes
            raise DataError(
                f"{path} is not a NumPy archive or is damaged; write it with numpy.savez"
            ) from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path} holds a single array, expected an archive written by numpy.savez"
            )
        yield archive


def array_names(path: Path) -> list[str]:
    """Names of the arrays of a .npz file; raises DataError where it is none."""
    with _opened(path) as archive:
        return list(archive.files)


def read_array(path: Path, key: str, option: str, kinds: str = PLAIN) -> NDArray[Any]:
    """One array of a .npz file, numbers as float64; never unpickles.

    Args:
        path: of the file.
        key: name of the array.
        option: that names it, for error messages.
        kinds: letters of the kinds of dtype that are taken.

    Raises:
        DataError: not an archive, no such array, or not real numbers.
    """
    with _opened(path) as archive:
        if key not in archive.files:
            raise DataError(
                f"{path} has no array {key!r}, it has {', '.join(archive.files) or 'none'}; "
                f"choose one with {option}="
            )
        try:
            array = archive[key]
        except Exception as error:  # NumPy's readers can raise anything on foreign bytes
            if "Object arrays" in str(error):
                raise DataError(
                    f"{path}: array {key!r} holds objects, expected numbers in rows of one size; "
                    "images of different sizes must be brought to one first"
                ) from error
            raise DataError(
                f"{path}: array {key!r} cannot be read ({error}); write it with numpy.savez"
            ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {key!r} is a file but no array; write it with numpy.savez")
    if array.dtype.kind not in kinds:
        raise DataError(f"{path}: array {key!r} has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64) if array.dtype.kind in PLAIN else array
