"""Your own data: delimited text and NumPy archives."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from gpx.data.delimited import Layout, existing_file, read_columns, sniff
from gpx.data.folders import sha256
from gpx.data.source import DataSource
from gpx.data.table import Floats, Table, numbered_names
from gpx.errors import DataError

Column = str | int


class CSVFile(DataSource):
    """A delimited text file, gzipped or not: one row per observation.

    Comma, semicolon, tab or white space between columns and a header line are recognised. The words
    true and false count as 1 and 0.

    Args:
        path: of the file.
        target: name of the target's column, or its number counting from 0, negative from the end
            (-1 is the last), or a list of several; None is the last.
        inputs: name or number of the input column, or a list of them, in this order; None is all
            but the targets.
        header: whether the first line names the columns; None finds out.
        split, test_fraction, root, split_seed: as for every source; a relative ``path`` is looked
            for in ``root`` when that is given.
    """

    def __init__(
        self,
        path: str,
        target: Column | Sequence[Column] | None = None,
        inputs: Column | Sequence[Column] | None = None,
        header: bool | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        self.path = path
        self.targets = [-1] if target is None else _as_list(target)
        self.inputs = None if inputs is None else _as_list(inputs)
        self.header = header

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: one sentence with file, line and column; see the tests for every case.
        """
        layout = sniff(_under(self.root, self.path), self.header)
        if layout.width < 2:
            raise DataError(
                f"{layout.path} has one column, expected inputs and a target separated by "
                "comma, semicolon, tab or white space"
            )
        if not self.targets:
            raise DataError(f"{layout.path}: target=[] names no column, expected one")
        targets = [find_column(layout, c) for c in self.targets]
        if self.inputs is None:
            inputs = [i for i in range(layout.width) if i not in targets]
        else:
            inputs = [find_column(layout, c) for c in self.inputs]
        asked = [*inputs, *targets]
        for i in asked:
            if asked.count(i) > 1:
                raise DataError(
                    f"{layout.path}: {layout.column(i)} is asked for twice among "
                    "inputs= and target=, expected different columns"
                )
        values = read_columns(layout, asked)
        several = len(targets) > 1
        names = numbered_names(len(targets), "y") if several else ("y",)
        if layout.header_line:
            names = tuple(layout.names[i] for i in targets)
        return Table(
            name=layout.path.name.removesuffix(".gz").rsplit(".", 1)[0],
            x=np.ascontiguousarray(values[:, : len(inputs)]),
            y=values[:, len(inputs) :].copy() if several else values[:, -1].copy(),
            input_names=tuple(layout.names[i] for i in inputs),
            target_name=", ".join(names),
            target_names=names if several else (),
            origin=str(layout.path),
            checksums={layout.path.name: sha256(layout.path)},
        )


class NPZFile(DataSource):
    """A NumPy archive with an array of inputs (n, d) and one of targets (n,) or (n, p).

    Args:
        path: of the .npz file.
        x, y: names of the arrays in it.
        test: name of an array (n,) or (n, k) that marks test rows, one column for each split; None
            cuts the rows into random folds.
        input_names: of the d columns of x; None calls them x1, x2, ...
        target_name: None takes the name of the array of targets.
        target_names: of the p > 1 columns of y; None calls them y1, y2, ...
        split, test_fraction, root, split_seed: as for every source; a relative ``path`` is looked
            for in ``root`` when that is given.
    """

    def __init__(
        self,
        path: str,
        x: str = "x",
        y: str = "y",
        test: str | None = None,
        input_names: Sequence[str] | None = None,
        target_name: str | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
        target_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        self.path = path
        self.x = x
        self.y = y
        self.test = test
        self.input_names = None if input_names is None else tuple(map(str, input_names))
        self.target_name = target_name
        self.target_names = None if target_names is None else tuple(map(str, target_names))

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: no such file or array, not numbers, shapes that do not agree.
        """
        path = existing_file(_under(self.root, self.path))
        x, y = (read_array(path, key, option) for key, option in ((self.x, "x"), (self.y, "y")))
        x = x[:, None] if x.ndim == 1 else x
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        masks = None
        if self.test is not None:
            marks = read_array(path, self.test, "test")
            if marks.ndim not in (1, 2) or not np.isin(marks, (0.0, 1.0)).all():
                raise DataError(
                    f"{path}: array {self.test!r} of shape {marks.shape} must mark test rows by 1 "
                    "and the others by 0, one column for each split"
                )
            masks = marks.reshape(len(marks), -1).astype(bool)
        return Table(
            name=path.stem,
            x=np.ascontiguousarray(x),
            y=np.ascontiguousarray(y),
            input_names=self.input_names or numbered_names(x.shape[-1] if x.ndim else 0),
            target_name=self.target_name or self.y,
            target_names=self.target_names
            or (numbered_names(y.shape[1], "y") if y.ndim == 2 else ()),
            test_masks=masks,
            origin=str(path),
            checksums={path.name: sha256(path)},
        )


def find_column(layout: Layout, column: Column) -> int:
    """Index of a column given by name, or by number counting from 0 (negative from the end).

    Raises:
        DataError: no such column; names the nearest.
    """
    if layout.header_line and str(column) in layout.names:
        return layout.names.index(str(column))
    if isinstance(column, int) or str(column).lstrip("-").isdigit():
        index = int(column)
        if -layout.width <= index < layout.width:
            return index % layout.width
        raise DataError(
            f"{layout.path} has {layout.width} columns, so there is no column number {index}; "
            f"expected {-layout.width} to {layout.width - 1} (counting from 0) or a name"
        )
    if not layout.header_line:
        raise DataError(
            f"{layout.path} has no header line, so no column is called {column!r}; "
            f"give its number, 0 to {layout.width - 1}"
        )
    near = get_close_matches(str(column), layout.names, n=3, cutoff=0.5)
    listed = ", ".join(layout.names[:12]) + (", ..." if layout.width > 12 else "")
    hint = f"nearest: {', '.join(near)}" if near else f"columns: {listed}"
    raise DataError(f"{layout.path} has no column {column!r}; {hint}")


def read_array(path: Path, key: str, option: str) -> Floats:
    """One array of a .npz file as float64; never unpickles.

    Raises:
        DataError: not an archive, no such array, or not real numbers.
    """
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
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path}: array {key!r} has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)


def _as_list(columns: Column | Sequence[Column]) -> list[Column]:
    """One column or several as a list: data.inputs=age is not the letters of it."""
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def _under(root: str | None, path: str) -> Path:
    given = Path(path).expanduser()
    return given if root is None or given.is_absolute() else Path(root).expanduser() / given
