"""Tables in Parquet files, read by the optional package pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpx.data.columns.column import Values
from gpx.data.columns.delimited import Layout
from gpx.data.columns.frame import Frame, places, plain_values
from gpx.data.folders import existing_file
from gpx.data.tables.table_file import TableFile
from gpx.errors import BackendUnavailable, ConfigError, DataError, DTypeError


class ParquetFile(TableFile):
    """A Parquet file: one row per observation; options as for ``TableFile``, without ``header``.

    Columns hold numbers, booleans, texts (also dictionary-encoded), dates or times; nulls are
    missing values. Times with a time zone are converted to UTC.

    Cost: the columns that are used are read into memory.
    """

    def layout(self, path: Path) -> Layout:
        """Names of the columns.

        Raises:
            BackendUnavailable: the package pyarrow is missing.
        """
        if self.header is not None:
            raise ConfigError(f"header={self.header}: columns of Parquet files have names")
        return parquet_layout(path)

    def frame(self, layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
        """Some columns; ``texts``: whole numbers that are not exact in float64 as text."""
        return parquet_frame(layout, columns, texts)


def open_parquet(path: Path) -> Any:
    """A ``pyarrow.parquet.ParquetFile``.

    Raises:
        BackendUnavailable: the package pyarrow is missing.
        DataError: not a Parquet file, or a damaged one.
    """
    try:
        from pyarrow import parquet  # optional
    except ImportError as error:
        raise BackendUnavailable(
            f"{path} is a Parquet file, which needs the package pyarrow: pip install "
            "'gpx-torch[parquet]', or write the rows in another format"
        ) from error
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # the reader may raise anything on arbitrary bytes
        raise DataError(f"{path} is not a Parquet file, or is damaged or truncated") from error


def parquet_layout(path: str | Path) -> Layout:
    """Names of the columns, as the layout of a text file with a header."""
    found = existing_file(path)
    names = tuple(open_parquet(found).schema_arrow.names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{found} has two columns named {twice!r}, expected different names")
    return Layout(found, None, 1, names)


def parquet_frame(layout: Layout, columns: Sequence[int], texts: bool = False) -> Frame:
    """Some columns of a file as a frame.

    Args:
        layout: of the file.
        columns: indices of the columns.
        texts: read whole numbers that are not exact in float64 as text.
    """
    kept = list(columns)
    names = tuple(layout.names[i] for i in kept)
    try:
        table = open_parquet(layout.path).read(columns=list(dict.fromkeys(names)))
    except (BackendUnavailable, DataError):
        raise
    except Exception as error:  # as above: damaged pages are read here
        raise DataError(f"{layout.path} is damaged or truncated ({error})") from error
    if table.num_rows == 0:
        raise DataError(f"{layout.path} has no rows")
    where = str(layout.path)
    return Frame(
        names,
        tuple(_values(table.column(name), name, where, texts) for name in names),
        where,
        places(where, names, "data row"),
    )


def _values(column: Any, name: str, where: str, texts: bool) -> Values:
    try:
        kind = str(column.type)
        if kind.startswith(("timestamp", "date")):
            if not kind.startswith("timestamp[ns"):  # NumPy cuts nanoseconds off, Arrow refuses to
                column = column.cast("timestamp[us]")
            return column.to_numpy().astype("datetime64[us]")
        if kind.startswith(("bool", "int", "uint", "half", "float", "double", "decimal")):
            found = np.asarray(column.to_numpy(), dtype=np.float64)
            if texts and kind.startswith(("int", "uint")) and (np.abs(found) >= 2.0**53).any():
                cells = ["" if cell is None else str(cell) for cell in column.to_pylist()]
                return np.array(cells, dtype=object)
            return found
        return plain_values(np.array(column.to_pylist(), dtype=object), name)
    except (DTypeError, ValueError, TypeError) as error:
        raise DataError(
            f"{where}: the column {name!r} has the type {column.type}, expected numbers, texts or "
            "dates"
        ) from error
