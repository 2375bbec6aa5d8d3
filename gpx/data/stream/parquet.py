"""Parquet files of a stream, converted once into arrays from which rows can be read.

Parquet files are compressed column by column in groups of up to a million rows, so reading random
batches would decompress whole groups again and again. Each file is therefore converted once into a
.npy file in the cache folder, which takes 4 or 8 bytes per number and is kept for further runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpx.atomic_file import atomic_file
from gpx.cache_folder import cache_folder
from gpx.data.columns.choice import as_list, find_column
from gpx.data.stream.array_file import ArrayFile
from gpx.data.stream.parts import Part, Parts, Target
from gpx.data.tables.parquet_file import open_parquet, parquet_layout
from gpx.errors import DataError

logger = logging.getLogger(__name__)

CHUNK_ROWS = 65_536
"""Rows in memory at a time during conversion."""
SINGLE = ("float", "halffloat", "int8", "int16", "uint8", "uint16", "bool")
"""Arrow's names of types that float32 represents exactly."""
DOUBLE = ("double", "int32", "int64", "uint32", "uint64")
"""Types that are converted to float64."""


def parquet_parts(files: Sequence[Path], target: Target) -> Parts:
    """Parts of Parquet files.

    Args:
        files: in order.
        target: name or number of the target's column, or a list of several; None: the last.

    Raises:
        BackendUnavailable: the package pyarrow is missing.
        DataError: a damaged file, columns that differ between files or are not numbers, or no such
            target.

    Cost: one pass over files that were not converted before.
    """
    layouts = [parquet_layout(file) for file in files]
    first, names = layouts[0], layouts[0].names
    for layout in layouts:
        if layout.names != names:
            odd = sorted(set(layout.names) ^ set(names))
            which = f"{odd[0]!r} is only in one of them" if odd else "their order differs"
            raise DataError(
                f"{layout.path} and {first.path} have different columns ({which}): all files of a "
                "stream must have the same"
            )
    asked = as_list(-1 if target is None else target)
    targets = [names[find_column(first, column)] for column in asked]
    if len(set(targets)) < len(targets):
        raise DataError(f"{first.path}: target={target} names a column twice")
    inputs = [name for name in names if name not in targets]
    if not inputs:
        raise DataError(f"{first.path} has no column besides target={target}, expected inputs")
    order = [*inputs, *targets]
    parts = [Part(_converted(file, order), shown=file) for file in files]
    return Parts(parts, len(inputs), inputs, targets)


def _converted(path: Path, columns: list[str]) -> ArrayFile:
    """The array of a Parquet file, which is converted unless that was done before."""
    content = open_parquet(path)
    kinds = {name: str(content.schema_arrow.field(name).type) for name in columns}
    for name, kind in kinds.items():
        if kind not in (*SINGLE, *DOUBLE):
            raise DataError(f"{path}: column {name!r} has the type {kind}, expected real numbers")
    about = path.stat()
    key = f"{path.resolve()}|{about.st_size}|{about.st_mtime_ns}|{columns}"
    folder = cache_folder() / "streams"
    kept = folder / f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
    if kept.exists():
        return ArrayFile.of(kept)
    rows = content.metadata.num_rows
    dtype = np.float32 if all(kind in SINGLE for kind in kinds.values()) else np.float64
    logger.info("%s: converting %d rows into %s", path, rows, kept)
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": (rows, len(columns)),
    }
    done = 0
    with atomic_file(kept) as file:
        np.lib.format.write_array_header_1_0(file, header)
        try:
            for batch in content.iter_batches(CHUNK_ROWS, columns=columns):
                block = np.empty((batch.num_rows, len(columns)), dtype=dtype)
                for place, name in enumerate(columns):
                    # nulls become NaN, which are refused later with their row
                    block[:, place] = batch.column(name).to_numpy(zero_copy_only=False)
                file.write(block.tobytes())
                done += len(block)
        except OSError as error:
            # errors of the disk have a number, errors of the file do not
            if error.errno is not None:
                raise
            raise DataError(f"{path} is damaged after row {done}: {error}") from error
    return ArrayFile.of(kept)
