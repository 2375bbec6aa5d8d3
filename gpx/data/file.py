"""Your own data: delimited text and NumPy archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpx.data.delimited import Layout, existing_file, sniff
from gpx.data.folders import sha256
from gpx.data.frame import Frame, read_frame
from gpx.data.source import DataSource
from gpx.data.table import Floats, Table, numbered_names
from gpx.data.table_file import TableFile, under
from gpx.errors import DataError


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
        path = existing_file(under(self.root, self.path))
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
            raise DataError(
                f"{path}: array {key!r} cannot be read ({error}); write it with numpy.savez"
            ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {key!r} is a file but no array; write it with numpy.savez")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path}: array {key!r} has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)
