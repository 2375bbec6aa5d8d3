"""One column of a table: its kind, and its conversion to numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpx.data.columns.dates import days, format_of, looks_like_date
from gpx.data.columns.numbers import WORDS, Floats, number_of
from gpx.errors import DataError

Kind = Literal["number", "category", "date"]
Values = NDArray[Any]
"""A column (n,) as given: float64, texts (dtype object) or datetime64; missing values are NaN,
empty texts or NaT."""

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Cells (in any case) that are missing values in a column of numbers or dates. In a column of texts
only the empty cell is: the others may be categories."""

_OTHER_NUMBER = re.compile(r"[(+-]?\s*[^\w\s<>=~]?\s*[+-]?\d[\d.,'’ ]*\s*[^\w\s<>=~]?\s*\)?")
"""A number with separators, a currency, per cent or brackets."""

_OTHER_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}\b|\d{1,2}:\d{2}\b")

UNSEEN = -1.0
"""Code of an unknown category."""

HINT = "remove the row, fill in the value, or choose missing=drop or missing=mean"


@dataclass(frozen=True)
class Column:
    """Kind of one column of a table.

    Attributes:
        name: of the column.
        kind: ``number``, ``category`` (texts) or ``date``.
        texts: for a category, the text of each code 0, 1, ...
        form: format of dates that are not in ISO 8601, as for ``datetime.strptime``.
    """

    name: str
    kind: Kind = "number"
    texts: tuple[str, ...] = ()
    form: str | None = None

    def numbers(
        self, values: Values, place: Callable[[int], str], missing: bool, hint: str = HINT
    ) -> Floats:
        """The column (n,) as numbers; NaN for missing values.

        Args:
            values: as given.
            place: maps a row index to a description of its place, for error messages.
            missing: whether values may be missing.
            hint: advice in the error for a missing value.

        Returns:
            numbers; codes of categories (``UNSEEN`` for unknown texts); days since 1970-01-01.

        Raises:
            DataError: a value is not of this kind, with its row and column.
        """
        if self.kind == "category":
            found = self._codes(values)
        elif values.dtype.kind == "O":
            found = self._read(values, place, missing, hint)
        elif np.isnat(values).all() if values.dtype.kind == "M" else np.isnan(values).all():
            found = np.full(len(values), np.nan)  # without any value the dtype is meaningless
        elif self.kind == "date":
            if values.dtype.kind != "M":
                row = int(np.flatnonzero(~np.isnan(values))[0])
                raise DataError(
                    f"{place(row)}: found {texts_of(values[[row]])[0]}, expected a date as text"
                )
            whole = values.astype("datetime64[us]")
            found = (whole - np.datetime64(0, "us")) / np.timedelta64(1, "D")
        else:
            if values.dtype.kind == "M":
                raise DataError(f"{place(0)}: found the date {values[0]}, expected a number")
            found = values
        bad = np.isinf(found) if missing else ~np.isfinite(found)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            count = int(bad.sum())
            raise DataError(
                f"{place(row)}: found {_shown(values[row])}, expected {_expected(self)} "
                f"({count} such value{'s' if count > 1 else ''} in all); {hint}"
            )
        return found

    def _codes(self, values: Values) -> Floats:
        codes = {text: float(code) for code, text in enumerate(self.texts)}
        for text, code in list(codes.items()):
            # models trained by earlier versions may know a whole number of mixed columns as "1.0"
            if text.endswith(".0") and number_of(text) is not None:
                codes.setdefault(text.removesuffix(".0"), code)
        for word, number in WORDS.items():
            # truth values were numbers in training if they came as such, and a file has the words
            if f"{number:g}" in codes:
                for written in (word, word.capitalize(), word.upper()):
                    codes.setdefault(written, codes[f"{number:g}"])
        codes[""] = np.nan
        found = [codes.get(text, UNSEEN) for text in texts_of(values)]
        if values.dtype.kind == "f":
            # numbers have lost leading zeros: 501 is the text 00501 if only that is this number
            numbers = [number_of(text) for text in self.texts]
            only = {n: float(code) for code, n in enumerate(numbers) if numbers.count(n) == 1}
            pairs = zip(values.tolist(), found, strict=True)
            found = [only.get(value, code) if code == UNSEEN else code for value, code in pairs]
        return np.array(found, dtype=np.float64)

    def _read(
        self, values: Values, place: Callable[[int], str], missing: bool, hint: str
    ) -> Floats:
        if self.kind == "number":
            try:
                found = np.array(list(map(float, values)))
                if np.isfinite(found).all() and not any("_" in text for text in values):
                    return found
            except ValueError:
                pass
        return np.array(
            [self._cell(text, row, place, missing, hint) for row, text in enumerate(values)]
        )

    def _cell(
        self, text: str, row: int, place: Callable[[int], str], missing: bool, hint: str
    ) -> float:
        if missing and text.lower() in MISSING:
            return np.nan
        if self.kind == "number":
            return self._number(text, row, place, hint)
        found = days(text, self.form)
        if found is None:
            form = "2021-03-31 or 2021-03-31T12:00" if self.form is None else self.form
            if text.lower() in MISSING:
                found_text = repr(text) if text else "an empty cell"
                raise DataError(f"{place(row)}: found {found_text}, expected a date; {hint}")
            raise DataError(
                f"{place(row)}: found {text!r}, expected a date as {form}; correct it, or give the "
                "format of dates, such as date_format=%d.%m.%Y"
            )
        return found

    def _number(self, text: str, row: int, place: Callable[[int], str], hint: str) -> float:
        found = number_of(text)
        if found is not None and np.isfinite(found):
            return found
        where = place(row)
        if found is not None:
            raise DataError(f"{where}: found {text}, expected a finite number; {hint}")
        if re.fullmatch(r"[+-]?\d+,\d+", text):
            hint = "write decimals with a point"
        elif text and ", line 1, " in where:
            hint = "set header=true if this line names the columns"
        elif text.lower() not in MISSING:
            training = hint == HINT  # options of the table can still be given
            hint = "write numbers plainly"
            if training:
                hint += (
                    f" and leave missing cells empty, or choose categories=[{self.name}] for a "
                    "category, or date_format= for a date"
                )
        found_text = f"text {text!r}" if text else "an empty cell"
        raise DataError(f"{where}: found {found_text}, expected a number; {hint}")


def column_of(
    name: str, values: Values, *, category: bool | None, date: bool | None, form: str | None
) -> Column:
    """The kind of a column, found from its values.

    If most texts look like ISO dates, or a single other format fits (``format_of``), it holds
    dates; if most are neither numbers nor written as numbers, dates or times in another way
    (decimal commas), it holds categories. Otherwise it is a column of numbers. Texts of another
    kind are errors when the column is read.

    Args:
        name: of the column.
        values: (n,), as given.
        category, date: whether it holds these; None: found from the values.
        form: format of dates, as for ``datetime.strptime``.
    """
    kind = values.dtype.kind
    if category:
        return Column(name, "category", _distinct(texts_of(values)))
    if kind != "O":
        return Column(name, "date", form=form) if kind == "M" or date else Column(name)
    given = [text for text in values if text.lower() not in MISSING]
    found = format_of(given) if form is None and date is not False else None
    if date or found is not None:
        return Column(name, "date", form=found or form)
    if given and date is None and 2 * sum(looks_like_date(t, form) for t in given) > len(given):
        return Column(name, "date", form=form)
    if category is None and 2 * sum(map(_plain_text, given)) > len(given):
        return Column(name, "category", _distinct(values))
    return Column(name)


def _plain_text(text: str) -> bool:
    """Whether a text is no number, however written."""
    return number_of(text) is None and not _written_otherwise(text)


def _written_otherwise(text: str) -> bool:
    """Whether a text may be a number, date or time in an unknown format: 1,5, 20 % or 31.3.2021.

    Ranges and limits, such as 6-8 and <60, are none of these.
    """
    return _OTHER_NUMBER.fullmatch(text) is not None or _OTHER_DATE.match(text) is not None


def texts_of(values: Values) -> list[str]:
    """A column as texts: whole numbers without a point, empty for missing values."""
    if values.dtype.kind == "O":
        return list(values)
    if values.dtype.kind == "M":
        return ["" if np.isnat(value) else str(value) for value in values]
    return ["" if np.isnan(value) else repr(float(value)).removesuffix(".0") for value in values]


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def _expected(column: Column) -> str:
    return {"number": "a finite number", "category": "a text", "date": "a date"}[column.kind]


def _shown(value: Any) -> str:
    return "an empty cell" if isinstance(value, str) and not value else str(value)
