"""Delimited text: what separates the columns, whether there is a header, and the numbers.

Numbers are read by ``numpy.loadtxt``. Only when that fails, or what it read needs a second look,
does a slower line-by-line reader go through the file to name the line and column at fault.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

import numpy as np

from gpx.data.table import Floats, numbered_names
from gpx.errors import DataError

WORDS = {"true": 1.0, "false": 0.0}
"""Words that are read as numbers, in any case."""

HINT = "remove the row or fill the value in"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)", re.I)
_QUOTED = re.compile(r'"[^"]*"')
_NAMED_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", None: "white space"}


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


def existing_file(path: str | Path) -> Path:
    """The file at ``path``; raises DataError with the nearest names when there is none."""
    found = Path(path).expanduser()
    if found.is_file():
        return found
    if found.is_dir():
        raise DataError(f"{found} is a folder, expected a file")
    if found.exists():
        raise DataError(f"{found} is a device or a pipe, expected a file that can be read twice")
    if not found.parent.is_dir():
        raise DataError(f"{found} does not exist, nor does its folder; check the path")
    others = sorted(p.name for p in found.parent.iterdir() if p.is_file())
    near = get_close_matches(found.name, others, n=3, cutoff=0.5)
    hint = f"nearest there: {', '.join(near)}" if near else "nothing there has a similar name"
    raise DataError(f"{found} does not exist; {hint}")


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
    lines = list(_first_lines(found, 2))
    if not lines:
        raise DataError(f"{found} is empty, expected rows of numbers")
    number, first = lines[0]
    commented = header is not False and first.lstrip().startswith("#")
    if commented:
        first = first.lstrip().lstrip("#").strip()
    delimiter = _delimiter(first, lines[1][1] if len(lines) > 1 else first)
    _, cells = next(_rows(io.StringIO(first), delimiter, found, number), (number, []))
    if not cells:
        raise DataError(f"{found}, line {number} is blank but for signs; expected names or numbers")
    texts = [i for i, c in enumerate(cells) if c and number_of(c) is None]
    numbers = [i for i, c in enumerate(cells) if number_of(c) is not None]
    if header is None:
        if texts and numbers:
            raise DataError(
                f"{found}, line {number}, column {texts[0] + 1}: found text {cells[texts[0]]!r} "
                f"beside numbers, expected either a header of names or a row of numbers; "
                "correct the line (or say header=true or header=false)"
            )
        header = bool(texts)
    if not header:
        names = numbered_names(len(cells))
        return Layout(found, delimiter, 0, names)
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


def read_columns(layout: Layout, columns: Sequence[int]) -> Floats:
    """The numbers in some columns, (n, len(columns)), float64; only these need be numbers.

    Raises:
        DataError: with line and column, for text, empty cells, NaN, infinities, ragged rows.

    Cost: O(characters); several times slower where words stand for numbers.
    """
    values = read_numbers(layout, columns)
    return _read_slow(layout, columns) if values is None else values


def read_cells(layout: Layout, columns: Sequence[int]) -> tuple[list[int], list[list[str]]]:
    """The cells in some columns as they are written, without the blanks around them.

    Returns:
        The line of every row (n,), and for every column its n cells.

    Raises:
        DataError: ragged rows, or a quote that is not closed, with its line.

    Cost: O(characters), line by line.
    """
    wanted, lines = list(columns), []
    cells: list[list[str]] = [[] for _ in wanted]
    for number, row in _data_rows(layout):
        _check_quotes(layout, number, row, wanted)
        lines.append(number)
        for column, i in zip(cells, wanted, strict=True):
            column.append(row[i])
    if not lines:
        raise DataError(f"{layout.path} has no rows of numbers")
    return lines, cells


def read_numbers(layout: Layout, columns: Sequence[int]) -> Floats | None:
    """``read_columns`` where all cells of these columns are plain finite numbers, or else None."""
    try:
        values = _read_fast(layout, columns)
    except DataError:
        raise
    except ValueError:
        return None
    return values if len(values) and np.isfinite(values).all() else None


def _read_fast(layout: Layout, columns: Sequence[int]) -> Floats:
    every = list(columns) == list(range(layout.width))
    if not every:
        # loadtxt does not compare row lengths when it reads only some columns
        with _TextFile(layout.path) as file:
            _check_widths(layout, file)
    with _TextFile(layout.path) as file:
        return np.loadtxt(
            file,
            dtype=np.float64,
            delimiter=layout.delimiter,
            comments=None,
            quotechar='"',
            skiprows=layout.header_line,
            usecols=None if every else list(columns),
            ndmin=2,
        )


def _check_widths(layout: Layout, file: TextIO) -> None:
    """Raise ValueError unless every line surely is a row of as many cells as the header."""
    expected = layout.width - 1
    for line in file:
        if not line.strip():
            continue
        if layout.delimiter is None:
            found = len(line.split()) - 1
        else:
            found = line.count(layout.delimiter)
        if found != expected or line.count('"') % 2:  # such a quote may go on over further lines
            raise ValueError("ragged")


def _read_slow(layout: Layout, columns: Sequence[int]) -> Floats:
    """Line by line: the same numbers, or a DataError that names line and column."""
    wanted = list(columns)
    values = array("d")  # an eighth of the memory of a list of lists
    for number, cells in _data_rows(layout):
        chosen = [cells[i] for i in wanted]
        try:
            row = list(map(float, chosen))
            doubtful = not math.isfinite(sum(row)) or "_" in "".join(chosen)
        except ValueError:
            doubtful = True
        if doubtful:  # cell by cell, which is slow
            _check_quotes(layout, number, cells, wanted)
            row = [finite_number(cells[i], layout.place(number, i)) for i in wanted]
        values.extend(row)
    if not values:
        raise DataError(f"{layout.path} has no rows of numbers")
    return np.array(values).reshape(-1, len(wanted))


def _data_rows(layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line, and the cells, of every row below the header."""
    with _TextFile(layout.path) as file:
        for number, cells in _rows(file, layout.delimiter, layout.path):
            if number <= layout.header_line:
                continue
            if len(cells) != layout.width:
                _check_quotes(layout, number, cells, range(len(cells)))
                raise DataError(
                    f"{layout.path}, line {number}: found {len(cells)} columns, expected "
                    f"{layout.width} as in the first line (separated by "
                    f"{_NAMED_DELIMITERS[layout.delimiter]})"
                )
            yield number, cells


def _check_quotes(layout: Layout, line: int, cells: list[str], columns: Sequence[int]) -> None:
    """Raise DataError where a cell of ``columns`` goes on over lines: its quote opens too early."""
    for i in columns:
        if "\n" in cells[i]:  # the quote that closes it was meant to open another
            raise DataError(_quote_opens(layout.path, line + "".join(cells[:i]).count("\n")))


def finite_number(cell: str, place: str, hint: str = HINT) -> float:
    """The number in a cell; true and false are 1 and 0.

    Args:
        cell: its text.
        place: where it is, for the error message; in line 1 a text may be meant for a name.
        hint: what to do about a cell without a value.

    Raises:
        DataError: text, an empty cell, NaN or an infinity.
    """
    value = number_of(cell)
    if value is None:
        found = f"text {cell!r}" if cell else "an empty cell"
        if cell and re.fullmatch(r"[+-]?\d+,\d+", cell):
            hint = "write decimals with a point"
        elif cell and ", line 1, " in place:
            hint = "say header=true if this line names the columns"
        raise DataError(f"{place}: found {found}, expected a number; {hint}")
    if not np.isfinite(value):
        raise DataError(f"{place}: found {cell}, expected a finite number; {hint}")
    return value


def number_of(cell: str) -> float | None:
    """The number in a cell, finite or not; None for any other text."""
    if _NUMBER.fullmatch(cell):
        return float(cell)
    return WORDS.get(cell.lower())


def _delimiter(first: str, second: str) -> str | None:
    bare = [_QUOTED.sub("", line) for line in (first, second)]
    for lines in (bare, bare[:1]):
        for candidate in (";", "\t", ","):
            if all(candidate in line for line in lines):
                return candidate
    return None


def _rows(
    file: TextIO, delimiter: str | None, path: Path, first: int = 1
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
    lines: list[str] = []  # of the row that is being read
    rows = csv.reader(_kept(file, lines), delimiter=delimiter, skipinitialspace=True)
    number = first
    while True:
        try:
            cells = next(rows, None)
            if cells is None:
                return
            doubtful = len(lines) > 1 or lines[0].count('"') % 2 == 1
            opens = doubtful and _open_at_end("".join(lines), delimiter)
        except csv.Error as error:
            if len(lines) == 1:
                raise DataError(f"{path}, line {number}: cannot be read ({error})") from error
            # a cell of more than 131,072 characters: the rows after a quote that is not closed
            raise DataError(_quote_opens(path, number)) from error
        if opens:
            raise DataError(_quote_opens(path, number + "".join(cells[:-1]).count("\n")))
        if any(cell.strip() for cell in cells):
            yield number, [cell.strip() for cell in cells]
        number += len(lines)
        lines.clear()


def _open_at_end(text: str, delimiter: str) -> bool:
    """Whether a quoted cell is still open at the end of ``text``; csv closes it in silence."""
    longer = io.StringIO(text.rstrip("\r\n") + "\nx")  # in an open cell this begins no new row
    return len(list(csv.reader(longer, delimiter=delimiter, skipinitialspace=True))) == 1


def _quote_opens(path: Path, line: int) -> str:
    return (
        f"{path}, line {line}: a quote opens here and is not closed where its cell ends; "
        "close it or remove it"
    )


def _kept(file: TextIO, lines: list[str]) -> Iterator[str]:
    for line in file:
        lines.append(line)
        yield line


def _first_lines(path: Path, count: int) -> Iterator[tuple[int, str]]:
    with _TextFile(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")
                count -= 1
                if count == 0:
                    return


class _TextFile:
    """Opens a file as text, unzipping by content, and turns decoding failures into DataError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> TextIO:
        try:
            with open(self.path, "rb") as raw:
                zipped = raw.read(2) == b"\x1f\x8b"
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
        # utf-8-sig drops the mark that spreadsheets put in front
        self.file: TextIO
        if zipped:
            self.file = gzip.open(self.path, "rt", encoding="utf-8-sig", newline="")
        else:
            self.file = open(self.path, encoding="utf-8-sig", newline="")
        return self.file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.file.close()
        if isinstance(error, UnicodeDecodeError):
            raise DataError(
                f"{self.path} is not text in UTF-8 (byte {error.start}); save it as CSV in UTF-8"
            ) from error
        if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
            raise DataError(
                f"{self.path} is a damaged or truncated gzip file; fetch it again"
            ) from error
