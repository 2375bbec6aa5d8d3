"""Inputs to predict for, and the file of predictions."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gpx.atomic_file import atomic_file
from gpx.data.delimited import Layout, existing_file, read_columns, sniff
from gpx.data.file import read_array
from gpx.data.table import Floats
from gpx.errors import DataError, ShapeError

logger = logging.getLogger(__name__)

PARTS = ("mean", "std", "lower", "upper")
"""Columns of a prediction."""


def read_inputs(path: str | Path, input_names: Sequence[str]) -> Floats:
    """Inputs of new points in the data's own units, columns in the order of training.

    With a header line columns are matched by name: their order is free and others (such as the
    target) are ignored. Without one there must be exactly d columns, in the order of training. A
    ``.npz`` file gives its array ``x``.

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
        return _archive(found, len(input_names))
    layout = sniff(found)
    if not layout.header_line:
        if layout.width != len(input_names):
            raise DataError(
                f"{layout.path} has {layout.width} columns and no header line, expected the "
                f"{len(input_names)} inputs of training in their order: {_listed(input_names)}"
            )
        return read_columns(layout, range(layout.width))
    columns = [_column(layout, name) for name in input_names]
    ignored = [name for i, name in enumerate(layout.names) if i not in columns]
    if ignored:
        logger.info("%s: columns not used in training, ignored: %s", found, _listed(ignored))
    return read_columns(layout, columns)


def write_predictions(
    path: str | Path,
    mean: ArrayLike,
    std: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    target_names: Sequence[str] = (),
) -> None:
    """Write one line per point: mean, standard deviation, interval, in the data's own units.

    The file appears complete or not at all; a name ending in ``.gz`` is zipped.

    Args:
        path: file to write; its folder is made.
        mean, std, lower, upper (n,), or (n, p) for several outputs: predictions.
        target_names: for several outputs, p names: the columns are ``mean_strength`` and so on, the
            four of one output beside each other. Otherwise empty.

    Raises:
        DataError: the folder cannot be written to.
        ShapeError: the four do not have one length.
    """
    names, columns = list(PARTS), [mean, std, lower, upper]
    if target_names:
        parts = [np.asarray(part) for part in columns]
        names = [f"{part}_{target}" for target in target_names for part in PARTS]
        columns = [part[:, place] for place in range(len(target_names)) for part in parts]
    write_table(path, names, columns)


def write_table(path: str | Path, names: Sequence[str], columns: Sequence[ArrayLike]) -> None:
    """Write named columns of numbers, comma-separated; see ``write_predictions``.

    Args:
        path: file to write; its folder is made.
        names: of the columns, for the first line.
        columns: each (n,).

    Raises:
        DataError: the folder cannot be written to.
        ShapeError: the columns do not have one length.
    """
    arrays = [np.asarray(c, dtype=np.float64) for c in columns]
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


def _write(file: object, names: Sequence[str], columns: list[Floats]) -> None:
    np.savetxt(
        file,  # type: ignore[arg-type]
        np.column_stack(columns),
        fmt="%.10g",
        delimiter=",",
        header=",".join(map(_quoted, names)),
        comments="",
    )


def _quoted(name: str) -> str:
    """A name as a cell of delimited text."""
    return '"' + name.replace('"', '""') + '"' if any(sign in name for sign in ',"\n') else name


def _archive(path: Path, width: int) -> Floats:
    x = read_array(path, "x", "x")
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or x.shape[1] != width:
        raise DataError(f"{path}: array 'x' has shape {x.shape}, expected (n, {width})")
    bad = ~np.isfinite(x).all(axis=1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(f"{path}, data row {row + 1}: found a value that is not finite")
    return x


def _column(layout: Layout, name: str) -> int:
    if name in layout.names:
        return layout.names.index(name)
    near = get_close_matches(name, layout.names, n=3, cutoff=0.5)
    hint = f"nearest there: {', '.join(near)}" if near else f"it has {_listed(layout.names)}"
    raise DataError(f"{layout.path} has no column {name!r}, which the model was trained on; {hint}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
