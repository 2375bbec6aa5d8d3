from __future__ import annotations

from datetime import datetime, timezone

import pytest

from gpx.data.columns.dates import days, format_of, looks_like_date


def since_epoch(*moment: int) -> float:
    return datetime(*moment, tzinfo=timezone.utc).timestamp() / 86400.0  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01", (1970, 1, 1)),
        ("2021-03-31", (2021, 3, 31)),
        ("2021/3/31", (2021, 3, 31)),
        ("1850-02-28", (1850, 2, 28)),
        ("2021-03-31 12:30", (2021, 3, 31, 12, 30)),
        ("2021-03-31T12:30:15.25", (2021, 3, 31, 12, 30, 15, 250_000)),
        ("2021-03-31T12:30Z", (2021, 3, 31, 12, 30)),
        ("2021-03-31T12:30:00+02:00", (2021, 3, 31, 10, 30)),
        ("2021-03-31T22:30:00 -0330", (2021, 4, 1, 2, 0)),
    ],
)
def test_days_since_1970(text: str, moment: tuple[int, ...]) -> None:
    assert days(text) == pytest.approx(since_epoch(*moment), abs=1e-9)
    assert looks_like_date(text)


@pytest.mark.parametrize(
    "text", ["2021-13-01", "2021-02-30", "2021-03-31T25:00", "0001-01-01T00:00+10:00"]
)
def test_days_that_do_not_exist_look_like_dates(text: str) -> None:
    assert days(text) is None
    assert looks_like_date(text)


@pytest.mark.parametrize("text", ["", "20210331", "31.3.2021", "2021-03", "red", "2021-03/31", "7"])
def test_what_is_no_date(text: str) -> None:
    assert days(text) is None
    assert not looks_like_date(text)


def test_a_format_of_ones_own() -> None:
    assert days("31.3.2021", "%d.%m.%Y") == days("2021-03-31")
    assert days("2021-03-31", "%d.%m.%Y") is None
    assert days("31.3.2021 12:00 +0100", "%d.%m.%Y %H:%M %z") == days("2021-03-31T11:00")
    assert looks_like_date("31.3.2021", "%d.%m.%Y")


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["31.3.2021", "1.4.2021"], "%d.%m.%Y"),
        (["3/4/2020", "31/5/2020"], "%d/%m/%Y"),
        (["3/4/2020", "3/14/2020"], "%m/%d/%Y"),
        (["31-05-2020 12:30", "01-06-2020 00:00"], "%d-%m-%Y %H:%M"),
        (["31/05/2020 12:30:05"], "%d/%m/%Y %H:%M:%S"),
        (["2020.03.04"], "%Y.%m.%d"),
        (["3/4/2020", "5/6/2020"], None),  # either may be the month
        (["31/5/2020", "5/31/2020"], "%d/%m/%Y"),  # the second is an error when it is read
        (["12.30.2020"], None),
        (["31.3.2021", "soon"], None),
        (["1-2-3"], None),
        (["41-0322"], None),
        (["1.5"], None),
        ([], None),
    ],
)
def test_the_format_that_alone_fits(texts: list[str], form: str | None) -> None:
    assert format_of(texts) == form
