"""Writing of predictions as comma-separated text."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from gpx.atomic_file import atomic_file
from gpx.errors import DataError, ShapeError

PARTS = ("mean", "std", "lower", "upper")
"""Names of the columns of a prediction."""


def write_predictions(
    path: str | Path,
    mean: ArrayLike,
    std: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    target_names: Sequence[str] = (),
    before: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Write one line per row: mean, standard deviation and interval, in the data's own units.

    The file is written atomically; it is gzipped if its name ends in ``.gz``.

    Args:
        path: file to write; its folder is created.
        mean, std, lower, upper (n,), or (n, p) for several outputs: predictions.
        target_names: for several outputs, p names: columns are named ``mean_strength`` and so on,
            with the four columns of an output side by side. Otherwise empty.
        before: further columns (n,) to write first, by name, such as names of the rows.

    Raises:
        DataError: the folder cannot be written to.
        ShapeError: the columns differ in length.
    """
    names, columns = list(PARTS), [mean, std, lower, upper]
    if target_names:
        parts = [np.asarray(part) for part in columns]
        names = [f"{part}_{target}" for target in target_names for part in PARTS]
        columns = [part[:, place] for place in range(len(target_names)) for part in parts]
    before = before or {}
    write_table(path, [*before, *names], [*before.values(), *columns])


def write_table(path: str | Path, names: Sequence[str], columns: Sequence[ArrayLike]) -> None:
    """Write named columns of numbers (ten digits) or texts; see ``write_predictions``.

    Args:
        path: file to write; its folder is created.
        names: of the columns, for the first line.
        columns: each (n,).

    Raises:
        DataError: the folder cannot be written to.
        ShapeError: the columns differ in length.
    """
    arrays = [np.asarray(c) for c in columns]
    if any(a.ndim != 1 or a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(
            f"{', '.join(names)} have shapes {[a.shape for a in arrays]}, expected the same (n,)"
        )
    cells = [map("{:.10g}".format, a.tolist()) if a.dtype.kind in "biuf" else a for a in arrays]
    target = Path(path).expanduser()
    try:
        with atomic_file(target) as raw, _packed(raw, target) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(zip(*cells, strict=True))
            text.detach()  # flushes without closing
    except OSError as error:
        raise DataError(f"cannot write to {target}: {error.strerror}") from error


def _packed(file: BinaryIO, target: Path) -> AbstractContextManager[Any]:
    zipped = target.suffix == ".gz"
    return gzip.GzipFile(fileobj=file, mode="wb", filename="") if zipped else nullcontext(file)
