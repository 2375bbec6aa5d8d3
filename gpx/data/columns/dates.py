"""Dates as numbers: days since 1970-01-01, UTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

UNIT = "days since 1970-01-01"
"""Unit of dates; the time of day is a fraction. Dates without an offset are taken as UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ISO = re.compile(
    r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?\s*(?:(Z)|([+-])(\d{2}):?(\d{2}))?)?",
    re.I,
)


_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d")
_TIMES = ("", " %H:%M", " %H:%M:%S")
_SHAPE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}( \d{1,2}:\d{2}(:\d{2})?)?")
FORMATS = tuple(day + time for day in _DAYS for time in _TIMES)
"""Formats that are recognised where only one of them fits a column."""


def format_of(texts: Sequence[str]) -> str | None:
    """The only one of ``FORMATS`` that fits; None if none does, or several do.

    Of 3/4/2020 and 5/6/2020 either number may be the month; a 31 somewhere tells. Texts after the
    one that tells are of that shape, and may still be no dates (31/02/2020).
    """
    if any(_SHAPE.fullmatch(text) is None for text in texts):
        return None
    fitting = list(FORMATS)
    for text in dict.fromkeys(texts):
        fitting = [form for form in fitting if days(text, form) is not None]
        if len(fitting) <= 1:
            break
    return fitting[0] if len(fitting) == 1 else None


def looks_like_date(text: str, form: str | None = None) -> bool:
    """Whether a cell has the format of a date, even if there is no such day."""
    return days(text, form) is not None if form else _ISO.fullmatch(text) is not None


def days(text: str, form: str | None = None) -> float | None:
    """Days since 1970-01-01 UTC; None if ``text`` is not a date.

    Args:
        text: ``2021-03-31``, ``2021/03/31``, with a time ``2021-03-31T12:00:05.25`` (or a space for
            the T), with an offset ``Z`` or ``+02:00``.
        form: another format, as for ``datetime.strptime`` (``%d.%m.%Y``).
    """
    try:
        if form is not None:
            return _since_epoch(datetime.strptime(text, form))
        found = _ISO.fullmatch(text)
        if found is None:
            return None
        year, _, month, day, hour, minute, second, fraction, _, sign, hours, minutes = (
            found.groups()
        )
        microseconds = int(((fraction or "") + "000000")[:6])
        day_and_clock = (int(part or 0) for part in (year, month, day, hour, minute, second))
        moment = datetime(*day_and_clock, microseconds)  # type: ignore[call-arg,arg-type]
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        return _since_epoch(moment - (-offset if sign == "-" else offset))
    except (ValueError, OverflowError):  # no such day, or before the year 1
        return None


def _since_epoch(moment: datetime) -> float:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) / timedelta(days=1)
