"""Reading of rows to predict from files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpx.data.archive import ANY, array_names, read_array
from gpx.data.columns.choice import named_column
from gpx.data.columns.coding import Coding
from gpx.data.columns.column import texts_of
from gpx.data.columns.delimited import Layout, single_column, sniff
from gpx.data.columns.frame import (
    Frame,
    array_frame,
    as_rows,
    places,
    plain_values,
    read_frame,
    require_columns,
)
from gpx.data.columns.numbers import Floats
from gpx.data.folders import existing_file
from gpx.data.images.pictures import new_pictures
from gpx.data.images.pixels import pixel_rows, pixel_shape
from gpx.data.tables.column_options import noise_variances
from gpx.data.tables.parquet_file import parquet_frame, parquet_layout
from gpx.errors import DataError, ShapeError

logger = logging.getLogger(__name__)


class NewRows(NamedTuple):
    """Rows to predict.

    Attributes:
        frame: the columns of training, in order.
        identifiers: names of the rows (n,); None if the table has none.
        noise (n,), or (n, p) for p targets: known noise variances, in their squared units; None if
            the table has none.
    """

    frame: Frame
    identifiers: list[str] | None = None
    noise: Floats | None = None


def read_rows(path: str | Path, coding: Coding) -> NewRows:
    """Read rows to predict, with columns of any kind.

    With a header line, columns are matched by name, in any order, and further ones (such as the
    target) are ignored. Without one there must be exactly d columns in the order of training.
    Columns named ``coding.identifier`` and ``coding.noise`` are read as names and noise variances
    if they exist. An archive must have an array for each column, or an array ``x`` of rows or
    images. All pictures in a folder are read, in the order of their names.

    Args:
        path: delimited text, gzipped or not, .parquet or .npz; of images also a folder of pictures.
        coding: of the columns, as in training.

    Raises:
        DataError: missing columns, or rows of different lengths; cells are checked by ``coding``.
    """
    shape = pixel_shape(coding.names)
    if shape is not None and Path(path).is_dir():
        return NewRows(_pictured(Path(path), coding, shape))
    found, names = existing_file(path), coding.names
    if found.suffix == ".npz":
        return _archived(found, coding)
    others = [*filter(None, [coding.identifier]), *coding.noise]
    packed = found.suffix == ".parquet"
    layout = parquet_layout(found) if packed else _sniffed(found, coding)

    def frame(columns: Sequence[int], texts: bool = False) -> Frame:
        if packed:
            return parquet_frame(layout, columns, texts)
        # a prediction for every row, also of rows without any value; at the end only if these can
        # be predicted, as spreadsheets append such lines
        filled = all(coded.fill for coded in coding.columns)
        return read_frame(layout, columns, texts, "all" if filled else "inner")

    there = layout.names if layout.header_line else ()
    identifiers = noise = None
    if coding.identifier in there:
        own = frame([layout.names.index(coding.identifier)], texts=True)
        identifiers = texts_of(own.columns[0])
    if coding.noise and set(coding.noise) <= set(there):
        noise = _as_given(frame([there.index(name) for name in coding.noise]))
    # as text if training did so: a category may be 01234, a date 20210331
    texts = any(coded.column.kind != "number" for coded in coding.columns)
    return NewRows(frame(_matched(layout, names, others), texts), identifiers, noise)


def _matched(layout: Layout, names: Sequence[str], others: Sequence[str]) -> list[int]:
    """Indices of the columns of training in a file; logs columns that are ignored."""
    if not layout.header_line:
        if layout.width != len(names):
            raise DataError(
                f"{layout.path} has {layout.width} columns and no header line, expected the "
                f"{len(names)} inputs of training in their order: {_listed(names)}"
            )
        return list(range(layout.width))
    why = ", which the model was trained on"
    columns = [named_column(layout.names, name, str(layout.path), why) for name in names]
    ignored = [name for name in layout.names if name not in names and name not in others]
    if ignored:
        logger.info("%s: columns not used in training, ignored: %s", layout.path, _listed(ignored))
    return columns


def _sniffed(path: Path, coding: Coding) -> Layout:
    """Layout of delimited text, whose first line may be a row of categories and numbers.

    A line with the names of all columns is a header, even if these are numbers or no row follows.
    """
    single = single_column(path, coding.names)
    if single is not None:
        return single
    try:
        with suppress(DataError):
            named = sniff(path, header=True, may_be_empty=True)
            if set(coding.names) <= set(named.names):
                return named
        return sniff(path)
    except DataError:
        bare = sniff(path, header=False)
        if coding.plain or bare.width != len(coding.names):
            raise
        return bare


def _archived(path: Path, coding: Coding) -> NewRows:
    """The rows in an archive: its array ``x``, or an array for each column."""
    where, names, there = str(path), coding.names, array_names(path)

    def columns_of(some: Sequence[str], texts: bool = False) -> Frame:
        arrays = (read_array(path, name, "x", ANY, texts) for name in some)
        columns = tuple(map(plain_values, arrays, some))
        shapes = {column.shape for column in columns}
        if len(shapes) > 1 or len(columns[0].shape) != 1:
            raise DataError(f"{path}: the columns have shapes {sorted(shapes)}, expected (n,)")
        return Frame(tuple(some), columns, where, places(where, some, "data row"))

    absent = [name for name in names if name not in there]
    if "x" in there and (absent or read_array(path, "x", "x", ANY).ndim > 1):
        try:
            rows = as_rows(pixel_rows(read_array(path, "x", "x"), names), len(names))
            require_columns(rows, names)
        except ShapeError as error:
            raise DataError(f"{path}, array 'x': {error}") from error
        frame = array_frame(rows, names, where, "data row")
    elif absent:
        raise DataError(
            f"{path} has no array {absent[0]!r}, it has {', '.join(there) or 'none'}; expected an "
            f"array for each column ({_listed(names)}), or an array 'x' of all"
        )
    else:
        frame = columns_of(names)
    identifiers = noise = None
    if coding.identifier in there:
        identifiers = texts_of(columns_of([coding.identifier], texts=True).columns[0])
    if coding.noise and set(coding.noise) <= set(there):
        noise = _archived_noise(path, coding.noise, columns_of)
    for name, values in ((coding.identifier, identifiers), (", ".join(coding.noise), noise)):
        if values is not None and len(values) != len(frame):
            raise DataError(
                f"{path}: array {name!r} has {len(values)} values for {len(frame)} rows of inputs"
            )
    return NewRows(frame, identifiers, noise)


def _as_given(columns: Frame) -> Floats:
    """Noise variances (n,), or (n, q) for q > 1 columns, whose empty cells add no noise."""
    if len(columns.names) == 1:
        return noise_variances(columns)[:, 0]
    anywhere = np.ones((len(columns), len(columns.names)), dtype=bool)
    return noise_variances(columns, absent=anywhere)


def _archived_noise(
    path: Path, names: Sequence[str], columns_of: Callable[[Sequence[str]], Frame]
) -> Floats:
    """Noise variances in an archive: arrays (n,), or one (n, p)."""
    values = read_array(path, names[0], "noise")
    if len(names) > 1 or values.ndim == 1:
        return _as_given(columns_of(names))
    titles = tuple(f"{names[0]} {i + 1}" for i in range(values.shape[1]))
    where = str(path)
    found = Frame(titles, tuple(values.T), where, places(where, titles, "data row"))
    return _as_given(found)


def _pictured(path: Path, coding: Coding, shape: tuple[int, ...]) -> Frame:
    """The pixels of all pictures in a folder."""
    _, pixels = new_pictures(path, coloured=len(shape) == 3 and shape[0] == 3)
    try:
        rows = as_rows(pixel_rows(pixels.astype(float), coding.names), len(coding.names))
    except ShapeError as error:
        raise DataError(f"{path}: {error}") from error
    return array_frame(rows, coding.names, str(path), "picture")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
