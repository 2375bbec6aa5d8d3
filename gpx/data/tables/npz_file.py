"""Tables in NumPy archives (``data=npz``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from gpx.data.archive import ANY, read_array
from gpx.data.columns.choice import (
    Choice,
    as_list,
    find_named_column,
    named_column,
    require_different,
)
from gpx.data.columns.coding import Coding, Missing, Unseen, Unusable
from gpx.data.columns.column import Values
from gpx.data.columns.frame import Frame, places, plain_values
from gpx.data.columns.numbers import Mask, numbered_names
from gpx.data.folders import checksums, existing_file, under
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.data.tables.column_options import ColumnOptions, GivenRows, table_of
from gpx.data.tables.table_file import AUTO, KERNEL
from gpx.errors import DataError
from gpx.tensor_checks import check_one_of


class NPZFile(DataSource):
    """A NumPy archive with inputs (n, d), or an array for every column, and targets (n,) or (n, p).

    Args:
        path: of the .npz file.
        x: name of the array of inputs, real numbers (n, d); or names of arrays (n,), one for each
            column, of numbers, texts or dates (datetime64).
        y: name of the array of targets; texts are classes.
        test: name of an array (n,) or (n, k) that marks test rows, one column for each split; None:
            random folds.
        input_names: of the d columns of x; None: x1, x2, ..., or the names of the arrays.
        target_name: None: the name of the array of targets.
        target_names: of the p > 1 columns of y; None: y1, y2, ...
        split, test_fraction, root, split_seed: as for every source; ``path`` is relative to
            ``root`` if that is given.
        noise: name of an array (n,), or (n, p) for p targets, of their known noise variances; as
            for ``TableFile``.
        weights: name of an array (n,) of the number of observations that each row stands for.
        missing, categories, dates, date_format, unseen, max_categories, target_transform: as for
            ``TableFile``, with columns by name; NaN, NaT and empty texts are missing values.
        unscaled: as for ``TableFile``; numbers count the input columns from 0.
        unusable: as for ``TableFile``; ``auto`` is ``refuse``.
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
        missing: Missing = "refuse",
        categories: str | Sequence[str] = AUTO,
        dates: str | Sequence[str] = AUTO,
        date_format: str | None = None,
        unseen: Unseen = "apart",
        max_categories: int = 100,
        noise: str | None = None,
        weights: str | None = None,
        target_transform: str | None = None,
        unscaled: Choice | Sequence[Choice] | None = None,
        unusable: Unusable = "refuse",
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_one_of(get_args(Unusable), unusable=unusable)
        self.path = path
        self.x = x if isinstance(x, str) else list(x)
        self.y = y
        self.test = test
        self.input_names = None if input_names is None else tuple(map(str, input_names))
        self.target_name = target_name
        self.noise, self.weights = noise, weights
        self.target_transform = target_transform
        self.unscaled = [] if unscaled is None else as_list(unscaled)
        self.target_names = None if target_names is None else tuple(map(str, target_names))
        self.options = ColumnOptions(
            Coding(
                (),
                missing,
                unseen,
                noise=() if noise is None else (noise,),
                max_categories=max_categories,
                leave_out=unusable == "leave_out",
            ),
            None if categories in (AUTO, KERNEL) else tuple(map(str, as_list(categories))),
            None if dates == AUTO else tuple(map(str, as_list(dates))),
            date_format,
        )

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: no such file or array, not numbers, shapes that do not agree, an array that
                is used twice.
        """
        path = existing_file(under(self.root, self.path))
        arrays = [self.x] if isinstance(self.x, str) else self.x
        uses = [*(("x", name) for name in arrays), ("y", self.y), ("test", self.test)]
        uses += [("noise", self.noise), ("weights", self.weights)]
        given = ((role, f"array {array!r}") for role, array in uses if array is not None)
        require_different(given, path, "arrays")
        inputs, targets = self._inputs(path), self._targets(path)
        if len(inputs) != len(targets):
            raise DataError(
                f"{path} has {len(inputs)} rows of inputs and {len(targets)} targets; expected the "
                "same number"
            )
        for name in (*(self.options.categories or ()), *(self.options.dates or ())):
            named_column((*inputs.names, *targets.names), name, str(path))
        further = {
            option: self._of_rows(path, array, targets, option)
            for option, array in (("noise", self.noise), ("weights", self.weights))
            if array is not None
        }
        chosen = [find_named_column(inputs.names, column, str(path)) for column in self.unscaled]
        return table_of(
            GivenRows(inputs, targets, **further),
            None,
            replace(self.options, unscaled=tuple(inputs.names[place] for place in chosen)),
            name=path.stem,
            test_masks=self._masks(path),
            origin=str(path),
            checksums=checksums([path]),
            target_transform=self.target_transform,
        )

    def _inputs(self, path: Path) -> Frame:
        if isinstance(self.x, str):
            x = read_array(path, self.x, "x")
            x = x[:, None] if x.ndim == 1 else x
            if x.ndim != 2:
                raise DataError(f"{path}: array {self.x!r} has shape {x.shape}, expected (n, d)")
            return _frame(path, self.input_names or numbered_names(x.shape[1]), list(x.T))
        columns = []
        for name in self.x:
            column = read_array(path, name, "x", ANY)
            if column.ndim != 1:
                raise DataError(f"{path}: array {name!r} has shape {column.shape}, expected (n,)")
            columns.append(plain_values(column, name))
        return _frame(path, self.input_names or tuple(self.x), columns)

    def _targets(self, path: Path) -> Frame:
        y = read_array(path, self.y, "y", ANY)
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y.ndim == 2 and y.dtype.kind == "f":
            return _frame(path, self.target_names or numbered_names(y.shape[1], "y"), list(y.T))
        if y.ndim != 1 or y.dtype.kind == "M":
            raise DataError(
                f"{path}: array {self.y!r} has dtype {y.dtype} and shape {y.shape}, expected real "
                "numbers, or texts (n,) for classes"
            )
        names = self.target_names or (self.target_name or self.y,)
        return _frame(path, names, [plain_values(y, self.y)])

    def _of_rows(self, path: Path, name: str, targets: Frame, option: str) -> Frame:
        """An array with a number for each row, or a noise variance for each target, as a frame."""
        values = read_array(path, name, option)
        rows, width = len(targets), len(targets.names)
        cells = option == "noise" and width > 1
        if values.shape != (rows,) and not (cells and values.shape == (rows, width)):
            raise DataError(
                f"{path}: array {name!r} of {option}= has shape {values.shape}, expected ({rows},)"
                + (f", or ({rows}, {width}) for as many targets" if cells else "")
            )
        if values.ndim == 1:
            return _frame(path, (name,), [values])
        return _frame(path, tuple(f"{name} of {t}" for t in targets.names), list(values.T))

    def _masks(self, path: Path) -> Mask | None:
        if self.test is None:
            return None
        marks = read_array(path, self.test, "test")
        if marks.ndim not in (1, 2) or not np.isin(marks, (0.0, 1.0)).all():
            raise DataError(
                f"{path}: array {self.test!r} of shape {marks.shape} must be 1 for test rows and 0 "
                "for others, with one column for each split"
            )
        return marks.reshape(len(marks), -1).astype(bool)


def _frame(path: Path, names: Sequence[str], columns: Sequence[Values]) -> Frame:
    """A frame of columns; raises DataError if lengths or number of names do not match."""
    lengths = sorted({len(column) for column in columns})
    if len(names) != len(columns) or len(lengths) != 1:
        raise DataError(
            f"{path}: {len(columns)} columns of {lengths} rows have {len(names)} names; expected "
            "columns of equal length with a name each"
        )
    where = str(path)
    return Frame(tuple(names), tuple(columns), where, places(where, names, "data row"))
