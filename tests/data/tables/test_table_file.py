"""Tables with texts, dates and gaps, as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpx.data import CSVFile, load
from gpx.data.columns.coding import Coding
from gpx.data.columns.frame import array_frame
from gpx.errors import ConfigError, DataError
from gpx.runs.gaps import completions

ROWS = """name,colour,when,size,quality
a,red,2021-01-01,1.5,good
b,green,2021-01-02,2.5,bad
c,red,2021-01-03,3.5,good
d,green,2021-01-05,4.5,good
"""


def write(folder: Path, text: str, name: str = "rows.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_texts_dates_and_classes(tmp_path: Path) -> None:
    head, *rows = ROWS.splitlines(keepends=True)
    source = CSVFile(write(tmp_path, head + "".join(3 * rows)), id="name")
    data = load(source, task="binary")
    assert data.input_names == (
        *("colour=green", "colour=red"),
        *("when (days since 1970-01-01)", "size"),
    )
    assert data.labels == ("bad", "good")
    assert sorted([*data.train_y.tolist(), *data.test_y.tolist()]) == 3 * [-1.0] + 9 * [1.0]
    every = np.concatenate([data.train_x.numpy(), data.test_x.numpy()])
    assert sorted(every[:, 0]) == 6 * [0.0] + 6 * [1.0]  # never scaled
    first = data.scaler.original_inputs(data.train_x)[0, 2].item()
    assert first in [18628.0, 18629.0, 18630.0, 18632.0]
    assert data.coding is not None
    assert data.coding.identifier == "name"
    assert load(source, task="multiclass").labels == ("bad", "good")


@pytest.mark.parametrize("task", ["regression", "count"])
def test_texts_are_no_numbers_to_learn(tmp_path: Path, task: str) -> None:
    source = CSVFile(write(tmp_path, ROWS), id="name", test_fraction=0.5)
    with pytest.raises(DataError, match=r"'quality'\) holds 2 different texts \('bad', 'g"):
        load(source, task=task)  # type: ignore[arg-type]


def test_more_texts_than_two_are_not_binary(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    source = CSVFile(path, target="name", inputs="size", test_fraction=0.5)
    with pytest.raises(
        DataError, match=r"holds 4 different texts .*expected two classes; for more"
    ):
        load(source, task="binary")
    assert len(load(source, task="multiclass").labels) == 4


def test_texts_are_refused_where_no_column_is_a_category(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2, column 2 \('colour'\): found text 'red'"):
        CSVFile(write(tmp_path, ROWS), id="name", categories=[], target="size").table()


def test_numbers_can_be_categories(tmp_path: Path) -> None:
    text = "zip,size,y\n" + "".join(f"{4000 + i % 2},{i},{i}\n" for i in range(12))
    data = load(CSVFile(write(tmp_path, text), categories="zip"), task="regression")
    assert data.input_names == ("zip=4000", "zip=4001", "size")


GAPS = "a,c,y\n1,red,1\n,green,2\n3,,3\n4,red,\n5,green,5\n6,red,6\n"


@pytest.mark.parametrize("missing", ["refuse", "mean"])
@pytest.mark.parametrize("column", ["task", 1, [-2]])
def test_columns_that_are_named_reach_the_model_as_they_are(tmp_path, column, missing) -> None:
    rows = "".join(f"{'rb'[i % 2]},{i % 3},{i / 7}\n" for i in range(20))
    path = write(tmp_path, "colour,task,y\n" + rows)
    data = load(CSVFile(path, unscaled=column, missing=missing), task="regression")
    place = data.input_names.index("task")
    assert sorted(set(data.train_x[:, place].tolist())) == [0.0, 1.0, 2.0]
    again = data.scaler.transform_inputs(torch.tensor([[0.0] * place + [7.0]]))
    assert again[0, place] == 7.0


def test_a_column_to_leave_as_it_is_must_be_an_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'quality' among its inputs, which unscaled="):
        CSVFile(write(tmp_path, ROWS), id="name", unscaled="quality").table()
    with pytest.raises(DataError, match="no column 'sise'; nearest there: size"):
        CSVFile(write(tmp_path, ROWS), unscaled="sise").table()


def test_missing_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 3, column 1 \('a'\): found an empty cell.*=drop or"):
        CSVFile(write(tmp_path, GAPS), missing="refuse").table()


def test_rows_that_lack_a_value_are_dropped(tmp_path: Path) -> None:
    table = CSVFile(write(tmp_path, GAPS), missing="drop").table()
    assert table.y.tolist() == [1.0, 5.0, 6.0]
    assert table.notes == "3 of 6 rows lack a value and are left out"


def test_classes_of_which_all_rows_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n,maybe\n1,yes\n2,no\n3,yes\n")
    table = CSVFile(path, missing="drop").table()
    assert (table.class_names, table.y.tolist()) == (("no", "yes"), [1.0, 0.0, 1.0])


def test_the_mean_stands_in_for_inputs_only(tmp_path: Path) -> None:
    table = CSVFile(write(tmp_path, GAPS), missing="mean").table()
    assert table.y.tolist() == [1.0, 2.0, 3.0, 5.0, 6.0]
    assert table.notes == "1 of 6 rows have no target and are left out"
    with pytest.raises(
        DataError, match=r"line 3, column 3 \('y'\): found an .*=drop or missing=mean"
    ):
        CSVFile(write(tmp_path, "a,c,y\n1,red,1\n2,red,\n"), missing="refuse").table()
    text = GAPS.replace("4,red,\n", "4,red,4\n")
    source = CSVFile(write(tmp_path, text), missing="mean", test_fraction=0.5)
    data = load(source, task="regression")
    assert set(data.input_names) <= {
        *("a", "a is missing", "c=red", "c=green", "c is missing"),
    }
    assert np.isfinite(data.train_x.numpy()).all()
    assert np.isfinite(data.test_x.numpy()).all()


def test_a_date_that_cannot_be_read(tmp_path: Path) -> None:
    text = ROWS.replace("2021-01-03", "2021-01-32")
    with pytest.raises(DataError, match=r"line 4, column 3 \('when'\): found '2021-01-32', expec"):
        CSVFile(write(tmp_path, text), id="name").table()


def test_dates_in_a_format_of_their_own(tmp_path: Path) -> None:
    text = "day,y\n31.12.1970,1\n1.1.1971,2\n"
    table = CSVFile(write(tmp_path, text), date_format="%d.%m.%Y").table()
    assert table.x[:, 0].tolist() == [364.0, 365.0]


def test_the_format_of_dates_is_found_where_one_cell_tells(tmp_path: Path) -> None:
    path = write(tmp_path, "day,y\n03/01/1970,1\n31/01/1970,2\n,3\n")
    table = CSVFile(path).table()
    np.testing.assert_array_equal(table.x[:, 0], [2.0, 30.0, np.nan])
    assert table.notes == "dates are read in the format of all: 'day' as %d/%m/%Y"
    assert table.coding is not None
    assert table.coding.columns[0].column.form == "%d/%m/%Y"  # new rows are read alike
    assert CSVFile(path, date_format="%d/%m/%Y").table().notes == ""
    either = write(tmp_path, "day,y\n03/01/1970,1\n02/01/1970,2\n", "either.csv")
    with pytest.raises(DataError, match=r"found text '03/01/1970', .* or date_format= for a date"):
        CSVFile(either).table()
    with pytest.raises(DataError, match=r"line 3, .* found '31/02/1970', expected a date as %d/%m"):
        CSVFile(write(tmp_path, "day,y\n31/01/1970,1\n31/02/1970,2\n", "no.csv")).table()


def test_rows_of_their_own_to_test_on(tmp_path: Path) -> None:
    path = write(tmp_path, "a,c,y\n1,red,1\n2,green,2\n3,red,3\n")
    test = write(tmp_path, "c,y,a\nblue,9,5\nred,8,4\n", "test.csv")
    source = CSVFile(path, test_path=test)
    data = load(source, task="regression")
    assert (data.num_train, data.num_test) == (3, 2)
    assert data.scaler.original_mean(data.test_y).tolist() == [9.0, 8.0]
    assert set(data.checksums) == {"rows.csv", "test.csv"}
    assert data.test_x[1, 1:].tolist() == [0.0, 1.0]
    assert data.test_x[0, 1] == data.test_x[0, 2] < 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,y\n1,1\n", "test.csv has no column 'c'"),
        ("1,red,2\n", "beside numbers"),
        ("a,c,y\n1,red,x\n", r"test.csv, line 2, column 3 \('y'\): found text 'x'"),
    ],
)
def test_faults_of_the_test_rows(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, "a,c,y\n1,red,1\n2,green,2\n3,red,3\n")
    with pytest.raises(DataError, match=words):
        CSVFile(path, test_path=write(tmp_path, text, "test.csv")).table()


def test_training_rows_to_test_on_are_said(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n1,1\n2,2\n3,3\n")
    with pytest.warns(UserWarning, match="is the same file as path=: metrics on training rows"):
        CSVFile(path, test_path=path).table()


def test_a_class_that_training_rows_lack(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n1,no\n2,yes\n3,no\n")
    test = write(tmp_path, "a,y\n1,maybe\n", "test.csv")
    with pytest.raises(DataError, match=r"test.csv, line 2, .* found the class 'maybe', which no"):
        CSVFile(path, test_path=test).table()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing": "median"}, "missing=median: expected one of auto, refuse, drop, mean"),
        ({"unseen": "zero"}, "unseen=zero: expected one of apart, refuse"),
        ({"max_categories": 0}, "max_categories=0 must be at least 1"),
        ({"test_path": "a.csv", "split": 1}, "with test_path= there is only one split"),
        ({"id": "size", "inputs": ["size"]}, r"\('size'\) is used twice, in id="),
        ({"categories": ["colour"], "dates": ["colour"]}, "among both categories= and dates="),
        ({"categories": ["color"]}, "no column 'color'; nearest there: colour"),
        ({"id": "nam"}, "no column 'nam'; nearest there: name"),
        ({"target": "when"}, "the target holds dates"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict, words: str) -> None:
    path = write(tmp_path, ROWS)
    with pytest.raises((ConfigError, DataError), match=words):
        CSVFile(path, **options).table()


def test_gaps_of_a_file_are_filled_in_by_default_with_a_note(tmp_path: Path) -> None:
    rows = [[str(i), str(i % 7), str(float(i))] for i in range(200)]
    for i in range(0, 120, 2):
        rows[i][0] = ""
    rows[3][2] = ""  # its target
    path = write(tmp_path, "a,b,y\n" + "".join(",".join(row) + "\n" for row in rows))
    auto, mean = (load(CSVFile(path, missing=m), task="regression") for m in ("auto", "mean"))
    assert auto.input_names == mean.input_names == ("a", "a is missing", "b")
    assert torch.equal(auto.train_x, mean.train_x)
    assert "1 of 200 rows have no target and are left out" in auto.notes.splitlines()
    assert any(
        "filled in with training means: 'a' (60); missing=drop" in n
        for n in auto.notes.splitlines()
    )
    assert "filled in with training means" not in mean.notes  # they were asked for
    # new rows may lack what training rows lacked, and nothing else
    assert auto.coding is not None
    assert mean.coding is not None
    lacking = auto.coding(array_frame(np.array([[np.nan, 2.0]]), ("a", "b"), "new", "row"))
    given = [float(row[0]) for row in rows if row[0]]
    assert lacking[0, 1:].tolist() == [1.0, 2.0]
    assert min(given) < lacking[0, 0] < max(given)
    other = array_frame(np.array([[1.0, np.nan]]), ("a", "b"), "new", "row")
    with pytest.raises(DataError, match=r"'b'\): found nan, .*a model trained with missing=mean"):
        auto.coding(other)
    assert np.isfinite(mean.coding(other)).all()


def test_a_file_without_gaps_has_plain_inputs(tmp_path: Path) -> None:
    table = CSVFile(write(tmp_path, "a,y\n1,2\n3,4\n")).table()
    assert table.coding is None


def nameful(tmp_path: Path, **columns: list[str]) -> str:
    """A file of 60 rows with further columns."""
    made = {"a": [str(i * i % 13) for i in range(60)], **columns, "y": [str(i) for i in range(60)]}
    rows = zip(*made.values(), strict=True)
    return write(tmp_path, "\n".join(",".join(row) for row in [tuple(made), *rows]) + "\n")


def test_columns_that_cannot_be_inputs_are_left_out_unless_named(tmp_path: Path) -> None:
    path = nameful(
        tmp_path,
        name=[f"n{i}" for i in range(60)],
        colour=["red", "blue"] * 30,
        empty=[""] * 60,
    )
    data = load(CSVFile(path, unscaled=["a"]), task="regression")
    assert data.input_names == ("a", "colour=blue", "colour=red")
    assert (data.scaler.input_mean[0], data.scaler.input_scale[0]) == (0.0, 1.0)
    (note,) = [n for n in data.notes.splitlines() if "left out of the inputs" in n]
    assert "'name' (54 different texts in 54 training rows), 'empty' (no value in training" in note
    assert data.coding is not None
    assert data.coding.names == ("a", "colour")
    with pytest.raises(DataError, match="column 'name' has 54 different texts in 54 training rows"):
        load(CSVFile(path, inputs=["a", "name"]), task="regression")
    with pytest.raises(DataError, match="column 'name' has 54 different texts"):
        load(CSVFile(path, unusable="refuse"), task="regression")
    with pytest.raises(
        DataError, match=r"'empty' has no value in training rows; leave it out with inputs=$"
    ):
        load(CSVFile(path, inputs=["a", "empty"]), task="regression")
    left = load(CSVFile(path, inputs=["a", "name"], unusable="leave_out"), task="regression")
    assert left.input_names == ("a",)


def test_a_file_without_any_column_that_can_be_an_input(tmp_path: Path) -> None:
    rows = "".join(f"n{i},{i}\n" for i in range(60))
    with pytest.raises(DataError, match=r"none of the columns can be an input: 'name' \(54 diff"):
        load(CSVFile(write(tmp_path, "name,y\n" + rows)), task="regression")


def test_columns_without_names_are_not_left_out(tmp_path: Path) -> None:
    rows = "".join(f"{i * i % 13},,{i}\n" for i in range(60))  # new rows go by position
    with pytest.raises(DataError, match="column 'x2' has no value"):
        load(CSVFile(write(tmp_path, rows)), task="regression")


def test_more_categories_than_allowed(tmp_path: Path) -> None:
    path = nameful(tmp_path, town=[f"n{i % 12}" for i in range(60)])
    data = load(CSVFile(path, max_categories=11), task="regression")
    assert data.notes.endswith("'town' (12 different texts, more than max_categories=11)")
    assert len(load(CSVFile(path, max_categories=12), task="regression").input_names) == 13


def test_rows_are_not_dropped_for_a_column_that_is_left_out(tmp_path: Path) -> None:
    rows = "".join(f"{i if i != 4 else ''},,{i % 5}\n" for i in range(30))
    source = CSVFile(write(tmp_path, "a,empty,y\n" + rows), missing="drop")
    data = load(source, task="regression")
    assert data.input_names == ("a",)
    assert len(data.train_x) + len(data.test_x) == 29
    notes = data.notes.splitlines()
    assert "1 of 30 rows lack a value and are left out" in notes
    assert "left out of the inputs: 'empty' (no value in training rows)" in notes
    # also where only rows to test on have a value
    test = write(tmp_path, "a,empty,y\n1,2,3\n2,,4\n", "test.csv")
    apart = CSVFile(source.path, missing="drop", test_path=test)
    data = load(apart, task="regression")
    assert (data.input_names, len(data.train_x), len(data.test_x)) == (("a",), 29, 2)
    with pytest.raises(DataError, match="all 30 rows lack a value"):
        load(CSVFile(source.path, missing="drop", unusable="refuse"), task="regression")


def test_values_that_only_test_rows_lack_are_averaged_over(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 7},{i % 5}\n" for i in range(60))
    test = write(tmp_path, "a,b,y\n3,,1\n4,2,2\n", "test.csv")
    path = write(tmp_path, "a,b,y\n" + rows)
    data = load(CSVFile(path, test_path=test), task="regression")
    assert data.input_names == ("a", "b", "b is missing")
    assert data.coding is not None
    assert data.test_x[:, 2].tolist() == [1.0, 0.0]
    assert not data.train_x[:, 2].any()
    found = completions(data.test_x, data.coding, data.scaler)
    assert found is not None
    assert found[0].tolist() == [0]
    filled = data.scaler.original_inputs(found[1][:, 0])
    assert set(filled[:, 1].round().tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
    assert not filled[:, 2].any()  # as in training rows
    assert "fewer than 50 training rows lack a value of 'b'" in data.notes
    assert Coding.from_state(data.coding.state()).input_names == data.input_names
    known = load(CSVFile(path, test_path=test, missing="mean"), task="regression")
    assert known.input_names == ("a", "b")  # as was asked for


def test_rows_are_not_dropped_for_texts_that_are_left_out(tmp_path: Path) -> None:
    rows = "".join(
        f"{i if i != 4 else ''},{f'remark {i}' if i % 3 == 0 else ''},{i % 5}\n" for i in range(60)
    )
    source = CSVFile(write(tmp_path, "a,remark,y\n" + rows), missing="drop")
    data = load(source, task="regression")
    assert data.input_names == ("a",)
    assert len(data.train_x) + len(data.test_x) == 59
    assert "1 of 60 rows lack a value and are left out" in data.notes.splitlines()
    assert "left out of the inputs: 'remark' (18 different texts in 18 training" in data.notes


def test_texts_with_gaps_that_only_training_rows_would_admit(tmp_path: Path) -> None:
    # 11 texts in 20 rows are too many; where a is missing are 5 of them
    rows = "".join(
        f"{i if 2 < i < 20 or i > 23 else ''},{f't{min(i, 10)}' if i < 20 else ''},{i % 5}\n"
        for i in range(60)
    )
    data = load(CSVFile(write(tmp_path, "a,t,y\n" + rows), missing="drop"), task="regression")
    assert data.input_names == ("a",)
    assert len(data.train_x) + len(data.test_x) == 53
    assert "'t' (gaps and many different texts)" in data.notes
