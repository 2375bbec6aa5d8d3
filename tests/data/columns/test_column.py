from __future__ import annotations

import numpy as np
import pytest

from gpx.data.columns.column import UNSEEN, Column, column_of, texts_of
from gpx.errors import DataError


def cells(*texts: str) -> np.ndarray:
    return np.array(texts, dtype=object)


def place(row: int) -> str:
    return f"here, row {row + 1}"


def told(values: np.ndarray, **options: object) -> Column:
    chosen = {"category": None, "date": None, "form": None, **options}
    return column_of("a", values, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (("1", "2.5", "true"), "number"),
        (("1", "", "NA"), "number"),
        (("1", "red"), "number"),  # so that the text among numbers is found
        (("red", "", "green"), "category"),
        (("", "NA"), "number"),
        (("2021-03-31", "2021-04-01"), "date"),
        (("2021-03-31", "2021-04-01", "yesterday"), "date"),  # so that this one is found
        (("2021-03-31", "yesterday", "now"), "category"),
        (("1,5", "2,5", "red"), "number"),  # so that decimal commas are found
        (("31.3.2021", "1.4.2021"), "date"),
        (("3/4/2021", "31/4/2021"), "number"),  # no 31st of April, and it may be month and day
        (("3/4/2021", "5/6/2021"), "number"),  # so that the format is asked for
        (("4010-1", "4020-7"), "category"),
        (("6-8", "9-11"), "category"),  # ranges
        (("300", "Alien", "Up"), "category"),  # titles, one of which is a number
        (("1", "2", "#DIV/0!"), "number"),
        (("<60", ">=60"), "category"),
        (("$12.50", "$3"), "number"),
        (("12 %", "3,5 %"), "number"),
        (("(1,234)", "-2,000"), "number"),
        (("12:30", "13:15"), "number"),
        (("a1", "b2"), "category"),
    ],
)
def test_what_a_column_holds_is_told_from_its_cells(texts: tuple[str, ...], kind: str) -> None:
    assert told(cells(*texts)).kind == kind


def test_what_a_column_holds_can_be_said() -> None:
    assert told(cells("1", "2", "1"), category=True).texts == ("1", "2")
    assert told(cells("red", "green"), category=False).kind == "number"
    assert told(cells("2021-03-31"), date=False).kind == "number"
    assert told(cells("2021-03-31"), date=False, category=True).kind == "category"
    assert told(cells("31.3.2021"), form="%d.%m.%Y").kind == "date"
    assert told(np.array([4000.0, 5001.5, 4000.0]), category=True).texts == ("4000", "5001.5")
    assert told(np.array(["2021-03-31"], dtype="M8[D]")).kind == "date"


def test_numbers_of_a_column() -> None:
    number = Column("a")
    assert number.numbers(cells("1", "-2e3", "TRUE"), place, False).tolist() == [1.0, -2000.0, 1.0]
    assert number.numbers(np.array([1.0, 2.0]), place, False).tolist() == [1.0, 2.0]
    colour = Column("a", "category", ("green", "red"))
    found = colour.numbers(cells("red", "", "green", "Red"), place, True)
    np.testing.assert_array_equal(found, [1.0, np.nan, 0.0, UNSEEN])
    code = Column("a", "category", ("1", "2.5"))
    assert code.numbers(np.array([2.5, 1.0, 3.0]), place, True).tolist() == [1.0, 0.0, UNSEEN]
    zips = Column("a", "category", ("00501", "02139", "1", "1.0", "NA"))
    by_number = zips.numbers(np.array([2139.0, 501.0, 1.0, 7.0]), place, True)
    assert by_number.tolist() == [1.0, 0.0, 2.0, UNSEEN]
    assert zips.numbers(cells("2139", "NA"), place, True).tolist() == [UNSEEN, 4.0]
    day = Column("a", "date")
    assert day.numbers(cells("1970-01-02", "1969-12-31T12:00"), place, False).tolist() == [
        1.0,
        -0.5,
    ]
    stamps = np.array(["1970-01-02", "1969-12-31T12:00"], dtype="M8[ns]")
    assert day.numbers(stamps, place, False).tolist() == [1.0, -0.5]


@pytest.mark.parametrize("text", ["", "NA", "n/a", "NaN", "null", "None", "?"])
def test_missing_values(text: str) -> None:
    for column, value in ((Column("a"), "1"), (Column("a", "date"), "1970-01-02")):
        found = column.numbers(cells(value, text), place, True)
        np.testing.assert_array_equal(found, [1.0, np.nan])
        with pytest.raises(DataError, match=r"^here, row 2: found .*missing=drop or missing=mean"):
            column.numbers(cells(value, text), place, False)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        (
            Column("a"),
            cells("1", "red"),
            "row 2: found text 'red', .*; write .* empty",
        ),
        (Column("a"), cells("1", "1e999"), "row 2: found 1e999, expected a finite number"),
        (Column("a"), cells("1", "1_0"), "row 2: found text '1_0'"),
        (Column("a"), np.array([1.0, np.inf]), r"row 2: found inf, expected a finite .*\(1 such"),
        (Column("a"), np.array(["2021-03-31"], dtype="M8[s]"), "row 1: found the date 2021-03-31"),
        (Column("a"), cells("1,5", "2,5"), "row 1: found text '1,5'.*write decimals with a point"),
        (Column("a"), cells("31.3.2021"), r"'31.3.2021', .*categories=\[a\].* or date_format= for"),
        (Column("a", "date"), cells("2021-03-31", "2021-02-30"), "row 2: found '2021-02-30', exp"),
        (Column("a", "date"), cells("x", "y"), r"'x', expected a date as 2021-03-31 or .*_format="),
        (Column("a", "date", form="%d.%m.%y"), cells("x"), r"expected a date as %d.%m.%y;"),
        (Column("a", "date"), np.array([20210331.0]), "row 1: found 20210331, expected a date as"),
    ],
)
def test_each_fault_is_one_sentence(column: Column, values: np.ndarray, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        column.numbers(values, place, True)
    assert "\n" not in str(caught.value)


def test_a_missing_category_where_it_is_refused() -> None:
    with pytest.raises(DataError, match=r"row 2: found an empty cell, expected a text \(1 such"):
        Column("a", "category", ("red",)).numbers(cells("red", ""), place, False)


def test_texts_of_numbers_and_dates() -> None:
    assert texts_of(np.array([3.0, 0.1, np.nan])) == ["3", "0.1", ""]
    assert texts_of(np.array(["2021-03-31", "NaT"], dtype="M8[D]")) == ["2021-03-31", ""]


@pytest.mark.parametrize("kind", ["number", "category", "date"])
@pytest.mark.parametrize("given", [[np.nan], ["NaT"], []])
def test_a_column_without_any_value_is_missing_whatever_its_type(kind: str, given: list) -> None:
    """As of one row to predict for, of which nobody can tell the type."""
    values = np.array(given, dtype="M8[us]" if given == ["NaT"] else float)
    column = Column("a", kind, ("red",))  # type: ignore[arg-type]
    assert np.isnan(column.numbers(values, place, True)).tolist() == [True] * len(given)
    if given:
        with pytest.raises(DataError, match=r"row 1: found (nan|NaT), expected a"):
            column.numbers(values, place, False)


def test_whole_numbers_that_earlier_versions_kept_with_a_point_are_found():
    code = Column("code", "category", ("1.0", "2", "2.0", "v1.0"))
    found = code.numbers(cells("1", "1.0", "2", "2.0", "v1"), place, False)
    assert found.tolist() == [0.0, 0.0, 1.0, 2.0, UNSEEN]


def test_words_in_a_file_are_the_truth_values_of_training() -> None:
    flag = Column("a", "category", ("0", "1"))
    found = flag.numbers(cells("True", "false", "1", "TRUE", "yes"), place, False)
    assert found.tolist() == [1.0, 0.0, 1.0, 1.0, UNSEEN]
    words = Column("a", "category", ("1", "True"))  # different texts in training
    assert words.numbers(cells("True", "1"), place, False).tolist() == [1.0, 0.0]
