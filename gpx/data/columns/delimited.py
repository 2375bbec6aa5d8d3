"""Delimited text: what separates the columns, whether there is a header, and the cells.

Columns of plain numbers are read by ``numpy.loadtxt``. Where that fails, a slower reader goes
through the file row by row and keeps the line of each, so that faults can be named by it.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import numpy as np

from gpx.data.columns.numbers import Floats, number_of, numbered_names
from gpx.data.folders import existing_file
from gpx.errors import DataError

_QUOTED = re.compile(r'"[^"]*"')
_NAMED_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", None: "white space"}
_END = "\x1fend of file\x1f"
"""A line behind the last one, which becomes a row of its own unless a quote is still open."""


@dataclass(frozen=True)
class Layout:
    """How a delimited file is written.

    Attributes:
        path: of the file.
        delimiter: between columns; None is any run of white space.
        header_line: line number of the header (from 1), or 0 without one.
        names: of the columns; x1, x2, ... where there is no header.
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
        """A column for an error message: number from 1 and, with a header, name."""
        return f"column {index + 1}" + (f" ({self.names[index]!r})" if self.header_line else "")

    def place(self, line: int, index: int) -> str:
        """A cell for an error message: file, line and column."""
        return f"{self.path}, line {line}, {self.column(index)}"


def sniff(path: str | Path, header: bool | None = None) -> Layout:
    """Delimiter (comma, semicolon, tab, white space) and column names of a file, ``.gz`` too.

    The first line is a header when none of its cells is a number; a leading ``#`` is dropped.

    Args:
        path: of the file.
        header: True or False when it is known whether there is one.

    Raises:
        DataError: no such file, not text, no rows, doubtful or repeated names.
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
        raise DataError(f"{found}, line {number} is blank but for signs; expected names or numbers")
    texts = [i for i, c in enumerate(cells) if c and number_of(c) is None]
    if header is None:
        if texts and any(number_of(c) is not None for c in cells):
            raise DataError(
                f"{found}, line {number}, column {texts[0] + 1}: found text {cells[texts[0]]!r} "
                f"beside numbers, expected either a header of names or a row of numbers; "
                "correct the line (or say header=true or header=false)"
            )
        header = bool(texts)
    if not header:
        return Layout(found, delimiter, 0, numbered_names(len(cells)))
    if len(lines) < 2:
        raise DataError(f"{found} has a header (line {number}) but no rows of numbers")
    names = tuple(c or f"column {i + 1}" for i, c in enumerate(cells))
    for i, name in enumerate(names):
        if name in names[:i]:
            raise DataError(
                f"{found}, line {number}: the name {name!r} heads both column "
                f"{names.index(name) + 1} and column {i + 1}, expected different names"
            )
    return Layout(found, delimiter, number, names)


def read_numbers(layout: Layout, columns: Sequence[int]) -> Floats | None:
    """Some columns (n, len(columns)) where all their cells are plain finite numbers, or else None.

    Cost: O(characters), a second time for the lengths of the rows where columns are left out.
    """
    every = list(columns) == list(range(layout.width))
    # loadtxt does not compare row lengths when it reads only some columns
    if not every and not _surely_rectangular(layout):
        return None
    with _text(layout.path) as file:
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
        except UnicodeDecodeError:  # a ValueError, too
            raise
        except ValueError:
            return None
    return values if len(values) and np.isfinite(values).all() else None


def read_cells(layout: Layout, columns: Sequence[int]) -> tuple[list[int], list[list[str]]]:
    """The cells in some columns as they are written, without the blanks around them.

    Returns:
        The line of every row (n,), and for every column its n cells.

    Raises:
        DataError: ragged rows, or a quote that is not closed, with its line.

    Cost: O(characters), row by row.
    """
    lines: list[int] = []
    cells: list[list[str]] = [[] for _ in columns]
    with _text(layout.path) as file:
        for number, row in _rows(file, layout.delimiter, layout.path):
            if number <= layout.header_line:
                continue
            ragged = len(row) != layout.width
            for i in range(len(row)) if ragged else columns:
                if "\n" in row[i]:  # the quote that closes it was meant to open another
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
    if not lines:
        raise DataError(f"{layout.path} has no rows of numbers")
    return lines, cells


def _surely_rectangular(layout: Layout) -> bool:
    """Whether every line is seen to be a row of as many cells as there are columns."""
    with _text(layout.path) as file:
        for line in filter(str.strip, file):
            cells = line.split() if layout.delimiter is None else line.split(layout.delimiter)
            # an odd quote may go on over further lines
            if len(cells) != layout.width or line.count('"') % 2:
                return False
    return True


def _delimiter(first: str, second: str) -> str | None:
    bare = [_QUOTED.sub("", line) for line in (first, second)]
    for lines in (bare, bare[:1]):
        for candidate in (";", "\t", ","):
            if all(candidate in line for line in lines):
                return candidate
    return None


def _rows(
    file: Iterable[str], delimiter: str | None, path: Path, first: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line, and stripped cells, of every row that is not blank.

    Args:
        file: lines; a quoted cell may go over several of them.
        delimiter: between cells.
        path: where the lines are from, for error messages.
        first: number of the first line.

    Raises:
        DataError: a quote that is never closed, with the line where it opens.
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
            # a cell of more than 131,072 characters: the rows after a quote that is not closed
            raise DataError(_quote_opens(path, number)) from error
        if cells == [_END]:
            return
        if cells and cells[-1].endswith(_END):  # csv closes the quote in silence
            raise DataError(_quote_opens(path, number + "".join(cells[:-1]).count("\n")))
        cells = [cell.strip() for cell in cells]
        if any(cells):
            yield number, cells


def _quote_opens(path: Path, line: int) -> str:
    return (
        f"{path}, line {line}: a quote opens here and is not closed where its cell ends; "
        "close it or remove it"
    )


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """A file as text, unzipped by content; raises DataError where it cannot be decoded."""
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    # utf-8-sig drops the mark that spreadsheets put in front
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
