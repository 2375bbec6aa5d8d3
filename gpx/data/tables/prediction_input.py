"""Inputs to predict for, and the file of predictions."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpx.atomic_file import atomic_file
from gpx.data.columns.coding import Coding
from gpx.data.columns.column import texts_of
from gpx.data.columns.delimited import Layout, existing_file, read_columns, sniff
from gpx.data.columns.frame import (
    Frame,
    array_frame,
    named_column,
    places,
    plain_values,
    read_frame,
    require_columns,
)
from gpx.data.images.pixels import pixel_rows
from gpx.data.table import Floats
from gpx.data.tables.column_options import noise_variances
from gpx.data.tables.npz_file import ANY, array_names, read_array
from gpx.data.tables.parquet_file import parquet_frame, parquet_layout
from gpx.errors import DataError, ShapeError

logger = logging.getLogger(__name__)

PARTS = ("mean", "std", "lower", "upper")
"""Columns of a prediction."""


class NewRows(NamedTuple):
    """Rows to predict for.

    Attributes:
        frame: the columns of training, in their order.
        identifiers: texts (n,) that name the rows; None where the table has none.
        noise (n,): known noise variances, in the squared unit of the target; None where the table
            has none.
    """

    frame: Frame
    identifiers: list[str] | None = None
    noise: Floats | None = None


def read_rows(path: str | Path, coding: Coding) -> NewRows:
    """Rows of new points, for columns of any kind; see ``read_inputs``.

    Parquet files are taken, too; an archive has an array ``x`` (n, d) of numbers, or one for each
    column. A column of the name of ``coding.identifier`` is read as texts
    and one of that of ``coding.noise`` as variances; they need not be there.

    Raises:
        DataError: missing columns, ragged rows; what cells hold is judged by ``coding``.
    """
    found, names = existing_file(path), coding.names
    others = [name for name in (coding.identifier, coding.noise) if name is not None]
    if found.suffix == ".npz" and not coding.plain:
        return NewRows(_archived_columns(found, names))
    if found.suffix == ".npz" or (found.suffix != ".parquet" and coding.plain and not others):
        return NewRows(array_frame(read_inputs(found, names), names, str(found)))
    packed = found.suffix == ".parquet"
    layout = parquet_layout(found) if packed else _sniffed(found, coding)

    def frame(columns: Sequence[int], texts: bool = False) -> Frame:
        return parquet_frame(layout, columns) if packed else read_frame(layout, columns, texts)

    there = layout.names if layout.header_line else ()
    identifiers = noise = None
    if coding.identifier in there:
        own = frame([layout.names.index(coding.identifier)], texts=True)
        identifiers = texts_of(own.columns[0])
    if coding.noise in there:
        noise = noise_variances(frame([layout.names.index(coding.noise)]))
    return NewRows(frame(_matched(layout, names, others)), identifiers, noise)


def read_inputs(path: str | Path, input_names: Sequence[str]) -> Floats:
    """Inputs of new points in the data's own units, columns in the order of training.

    With a header line columns are matched by name: their order is free and others (such as the
    target) are ignored. Without one there must be exactly d columns, in the order of training. A
    ``.npz`` file gives its array ``x``, rows or, for a model of images, these as they are.

    Args:
        path: delimited text, gzipped or not, or .npz.
        input_names: d names, as in training.

    Returns:
        (n, d).

    Raises:
        DataError: missing columns, text, empty cells, NaN or infinities, with line and column.
    """
    found = existing_file(path)
    if found.suffix == ".npz":
        return _archive(found, input_names)
    layout = sniff(found)
    return read_columns(layout, _matched(layout, input_names))


def _matched(layout: Layout, names: Sequence[str], others: Sequence[str] = ()) -> list[int]:
    """Where a file has the columns of training; ``others`` are used, too."""
    if not layout.header_line:
        if layout.width != len(names):
            raise DataError(
                f"{layout.path} has {layout.width} columns and no header line, expected the "
                f"{len(names)} inputs of training in their order: {_listed(names)}"
            )
        return list(range(layout.width))
    why = ", which the model was trained on"
    columns = [named_column(layout.names, name, str(layout.path), why) for name in names]
    ignored = [
        name for i, name in enumerate(layout.names) if i not in columns and name not in others
    ]
    if ignored:
        logger.info("%s: columns not used in training, ignored: %s", layout.path, _listed(ignored))
    return columns


def write_predictions(
    path: str | Path,
    mean: ArrayLike,
    std: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    target_names: Sequence[str] = (),
    before: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Write one line per point: mean, standard deviation, interval, in the data's own units.

    The file appears complete or not at all; a name ending in ``.gz`` is zipped.

    Args:
        path: file to write; its folder is made.
        mean, std, lower, upper (n,), or (n, p) for several outputs: predictions.
        target_names: for several outputs, p names: the columns are ``mean_strength`` and so on, the
            four of one output beside each other. Otherwise empty.
        before: further columns (n,) to write first, by name, such as what the rows are called.

    Raises:
        DataError: the folder cannot be written to.
        ShapeError: the four do not have one length.
    """
    names, columns = list(PARTS), [mean, std, lower, upper]
    if target_names:
        parts = [np.asarray(part) for part in columns]
        names = [f"{part}_{target}" for target in target_names for part in PARTS]
        columns = [part[:, place] for place in range(len(target_names)) for part in parts]
    before = before or {}
    write_table(path, [*before, *names], [*before.values(), *columns])


def write_table(path: str | Path, names: Sequence[str], columns: Sequence[ArrayLike]) -> None:
    """Write named columns of numbers or texts, comma-separated; see ``write_predictions``.

    Args:
        path: file to write; its folder is made.
        names: of the columns, for the first line.
        columns: each (n,).

    Raises:
        DataError: the folder cannot be written to.
        ShapeError: the columns do not have one length.
    """
    arrays = [np.asarray(c) for c in columns]
    if any(a.ndim != 1 or a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(
            f"{', '.join(names)} have shapes {[a.shape for a in arrays]}, expected the same (n,)"
        )
    target = Path(path).expanduser()
    try:
        with atomic_file(target) as raw:
            if target.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", filename="") as zipped:
                    _write(zipped, names, arrays)
            else:
                _write(raw, names, arrays)
    except OSError as error:
        raise DataError(f"cannot write to {target}: {error.strerror}") from error


def _write(file: object, names: Sequence[str], columns: list[NDArray[Any]]) -> None:
    if all(column.dtype.kind in "biuf" for column in columns):
        rows, form = np.column_stack([c.astype(np.float64) for c in columns]), "%.10g"
    else:
        rows, form = np.column_stack([_cells(column) for column in columns]), "%s"
    np.savetxt(
        file,  # type: ignore[arg-type]
        rows,
        fmt=form,
        delimiter=",",
        header=",".join(map(_quoted, names)),
        comments="",
        encoding="utf-8",
    )


def _cells(column: NDArray[Any]) -> NDArray[Any]:
    """A column as cells of delimited text."""
    if column.dtype.kind in "biuf":
        return np.array([f"{value:.10g}" for value in column], dtype=object)
    return np.array([_quoted(str(value)) for value in column], dtype=object)


def _quoted(name: str) -> str:
    """A name as a cell of delimited text."""
    return '"' + name.replace('"', '""') + '"' if any(sign in name for sign in ',"\n') else name


def _archive(path: Path, names: Sequence[str]) -> Floats:
    try:
        x, width = pixel_rows(read_array(path, "x", "x"), names), len(names)
    except ShapeError as error:
        raise DataError(f"{path}: {error}") from error
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or x.shape[1] != width:
        raise DataError(f"{path}: array 'x' has shape {x.shape}, expected (n, {width})")
    bad = ~np.isfinite(x).all(axis=1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(f"{path}, data row {row + 1}: found a value that is not finite")
    return x


def _sniffed(path: Path, coding: Coding) -> Layout:
    """Columns of delimited text, of which the first line may be a row of texts and numbers."""
    try:
        return sniff(path)
    except DataError:
        bare = sniff(path, header=False)
        if coding.plain or bare.width != len(coding.names):
            raise
        return bare


def _archived_columns(path: Path, names: Sequence[str]) -> Frame:
    """Columns of any kind in an archive: its array ``x``, or an array for each of them."""
    where = str(path)
    if "x" in array_names(path) and "x" not in names:
        x = read_array(path, "x", "x")
        require_columns(x, names)
        return Frame(tuple(names), tuple(x.T), where, places(where, names, "data row"))
    columns = tuple(plain_values(read_array(path, name, "x", ANY), name) for name in names)
    shapes = {column.shape for column in columns}
    if len(shapes) > 1 or len(columns[0].shape) != 1:
        raise DataError(f"{path}: its columns have the shapes {sorted(shapes)}, expected (n,)")
    return Frame(tuple(names), columns, where, places(where, names, "data row"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
