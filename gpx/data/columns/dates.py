"""Dates as numbers: days since 1970-01-01, UTC."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

UNIT = "days since 1970-01-01"
"""Unit of dates; the time of day is a fraction. Dates without an offset are taken as UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ISO = re.compile(
    r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?\s*(?:(Z)|([+-])(\d{2}):?(\d{2}))?)?",
    re.I,
)


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
