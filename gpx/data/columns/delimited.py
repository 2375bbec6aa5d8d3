"""Reading of delimited text: delimiter, header and cells.

Columns of plain numbers are read by ``numpy.loadtxt``. If that fails, a slower reader reads the
file row by row and keeps line numbers for error messages.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TextIO

import numpy as np

from gpx.data.columns.numbers import Floats, number_of, numbered_names
from gpx.data.folders import existing_file
from gpx.errors import DataError

_QUOTED = re.compile(r'"[^"]*"')
_NAMED_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", None: "white space"}
_END = "\x1fend of file\x1f"
"""Appended after the last line: if it is not read as a separate row, a quote is still open."""


EmptyRows = Literal["none", "inner", "all"]
"""Which lines of delimiters alone are rows: spreadsheets append such lines, ``inner`` is all but
those."""


@dataclass(frozen=True)
class Layout:
    """Format of a delimited file.

    Attributes:
        path: of the file.
        delimiter: between columns; None: white space.
        header_line: line number of the header (from 1), or 0 without one.
        names: of the columns; x1, x2, ... without a header.
    """

    path: Path
    delimiter: str | None
    header_line: int
    names: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.names)

    def column(self, index: int) -> str:
        """Description of a column for error messages: number from 1 and, with a header, name."""
        return f"column {index + 1}" + (f" ({self.names[index]!r})" if self.header_line else "")

    def place(self, line: int, index: int) -> str:
        """Description of a cell for error messages: file, line and column."""
        return f"{self.path}, line {line}, {self.column(index)}"


def sniff(path: str | Path, header: bool | None = None, *, may_be_empty: bool = False) -> Layout:
    """Find delimiter (comma, semicolon, tab, white space) and column names of a file, also ``.gz``.

    The first line is a header if none of its cells is a number; a leading ``#`` is dropped.

    Args:
        path: of the file.
        header: whether there is a header; None: found from the first line.
        may_be_empty: whether a header may be all.

    Raises:
        DataError: no such file, not text, no rows, or an ambiguous header or repeated names.
    """
    found = existing_file(path)
    with _text(found) as file:
        lines = list(islice(((n, line) for n, line in enumerate(file, 1) if line.strip()), 2))
    if not lines:
        raise DataError(f"{found} is empty, expected rows of numbers")
    number, first = lines[0]
    if header is not False and first.lstrip().startswith("#"):
        first = first.lstrip().lstrip("#").strip()
    delimiter = _delimiter(first, lines[-1][1])
    _, cells = next(_rows(io.StringIO(first), delimiter, found, number), (number, []))
    if not cells:
        raise DataError(f"{found}, line {number} has no names or numbers")
    texts = [i for i, c in enumerate(cells) if c and number_of(c) is None]
    if header is None:
        if texts and any(number_of(c) is not None for c in cells):
            raise DataError(
                f"{found}, line {number}, column {texts[0] + 1}: found text {cells[texts[0]]!r} "
                "beside numbers, expected either a header of names or a row of numbers; correct "
                "the line (or set header=true or header=false)"
            )
        header = bool(texts)
    if not header:
        return Layout(found, delimiter, 0, numbered_names(len(cells)))
    if len(lines) < 2 and not may_be_empty:
        raise DataError(f"{found} has a header (line {number}) but no rows of numbers")
    names = tuple(c or f"column {i + 1}" for i, c in enumerate(cells))
    for i, name in enumerate(names):
        if name in names[:i]:
            raise DataError(
                f"{found}, line {number}: columns {names.index(name) + 1} and {i + 1} are both "
                f"named {name!r}, expected different names"
            )
    return Layout(found, delimiter, number, names)


def single_column(path: str | Path, names: Sequence[str]) -> Layout | None:
    """Layout of a file of one column under one of these names, which has blanks; otherwise None.

    ``sniff`` would take the blanks for delimiters.
    """
    found = existing_file(path)
    with _text(found) as file:
        number, cells = next(_rows(file, ",", found), (0, []))
    if len(cells) != 1 or cells[0] not in names or len(cells[0].split()) < 2:
        return None
    return Layout(found, ",", number, (cells[0],))


def read_numbers(layout: Layout, columns: Sequence[int]) -> Floats | None:
    """Some columns (n, len(columns)) if all their cells are finite numbers, otherwise None.

    Cost: O(characters); twice if columns are left out, to check the lengths of rows.
    """
    every = list(columns) == list(range(layout.width))
    # loadtxt does not compare row lengths when it reads only some columns
    if not every and not _surely_rectangular(layout):
        return None
    with _text(layout.path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")  # an error says so
        try:
            values = np.loadtxt(
                file,
                dtype=np.float64,
                delimiter=layout.delimiter,
                comments=None,
                quotechar='"',
                skiprows=layout.header_line,
                usecols=None if every else list(columns),
                ndmin=2,
            )
        except UnicodeDecodeError:  # which is a ValueError
            raise
        except ValueError:
            return None
    return values if len(values) and np.isfinite(values).all() else None


def read_cells(
    layout: Layout, columns: Sequence[int], empty_rows: EmptyRows = "none"
) -> tuple[list[int], list[list[str]]]:
    """The cells of some columns as text, without surrounding blanks.

    Args:
        layout: of the file.
        columns: indices of the columns.
        empty_rows: which lines of delimiters alone are rows.

    Returns:
        line numbers of the rows (n,), and for every column its n cells.

    Raises:
        DataError: rows of different lengths, or a quote that is not closed, with the line.

    Cost: O(characters), row by row.
    """
    lines: list[int] = []
    last = 0  # number of rows up to the last with a value
    cells: list[list[str]] = [[] for _ in columns]
    with _text(layout.path) as file:
        for number, row in _rows(
            file, layout.delimiter, layout.path, empty_rows=empty_rows != "none"
        ):
            if number <= layout.header_line:
                continue
            ragged = len(row) != layout.width
            for i in range(len(row)) if ragged else columns:
                if "\n" in row[i]:  # a missing quote has joined lines
                    opened = number + "".join(row[:i]).count("\n")
                    raise DataError(_quote_opens(layout.path, opened))
            if ragged:
                raise DataError(
                    f"{layout.path}, line {number}: found {len(row)} columns, expected "
                    f"{layout.width} as in the first line (separated by "
                    f"{_NAMED_DELIMITERS[layout.delimiter]})"
                )
            lines.append(number)
            for column, i in zip(cells, columns, strict=True):
                column.append(row[i])
            last = len(lines) if any(row) else last
    if empty_rows == "inner":
        lines, cells = lines[:last], [column[:last] for column in cells]
    if not lines:
        header = f"a header (line {layout.header_line}) but " if layout.header_line else ""
        raise DataError(f"{layout.path} has {header}no rows of numbers")
    return lines, cells


def _surely_rectangular(layout: Layout) -> bool:
    """Whether every line is certain to have as many cells as there are columns."""
    with _text(layout.path) as file:
        for line in filter(str.strip, file):
            cells = line.split() if layout.delimiter is None else line.split(layout.delimiter)
            # with an odd number of quotes, a cell may extend over further lines
            if len(cells) != layout.width or line.count('"') % 2:
                return False
    return True


def _delimiter(first: str, second: str) -> str | None:
    """The delimiter that both lines contain, or else the first line; None: white space."""
    bare = [_QUOTED.sub("", line) for line in (first, second)]
    for lines in (bare, bare[:1]):
        for candidate in (";", "\t", ","):
            if all(candidate in line for line in lines):
                return candidate
    return None


def _rows(
    file: Iterable[str],
    delimiter: str | None,
    path: Path,
    first: int = 1,
    empty_rows: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """First line number and stripped cells of every row that is not blank.

    Args:
        file: lines; a quoted cell may extend over several lines.
        delimiter: between cells.
        path: of the file, for error messages.
        first: number of the first line.
        empty_rows: whether a line of delimiters alone is a row.

    Raises:
        DataError: a quote that is not closed, with the line where it opens.
    """
    if delimiter is None:
        for number, line in enumerate(file, start=first):
            if line.strip():
                yield number, [cell.strip('"') for cell in line.split()]
        return
    reader = csv.reader(chain(file, [_END]), delimiter=delimiter, skipinitialspace=True)
    while True:
        number = first + reader.line_num
        try:
            cells = next(reader)
        except csv.Error as error:
            if first + reader.line_num == number + 1:
                raise DataError(f"{path}, line {number}: cannot be read ({error})") from error
            # a cell of more than 131,072 characters: a quote is not closed
            raise DataError(_quote_opens(path, number)) from error
        if cells == [_END]:
            return
        if cells and cells[-1].endswith(_END):  # csv does not report an open quote
            raise DataError(_quote_opens(path, number + "".join(cells[:-1]).count("\n")))
        cells = [cell.strip() for cell in cells]
        if any(cells) or (empty_rows and cells):
            yield number, cells


def _quote_opens(path: Path, line: int) -> str:
    return (
        f"{path}, line {line}: a quote opens here and is not closed at the end of its cell; close "
        "it or remove it"
    )


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """A file opened as text, unzipped if needed; raises DataError if it cannot be decoded."""
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    # utf-8-sig skips the byte order mark that spreadsheets write
    how = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
    with gzip.open(path, **how) if zipped else open(path, **how) as file:  # type: ignore[call-overload]
        try:
            yield file
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not text in UTF-8 (byte {error.start}); save it as CSV in UTF-8"
            ) from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path} is a damaged or truncated gzip file; fetch it again"
            ) from error
