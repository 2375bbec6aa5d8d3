from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gpx.data import CSVFile, NPZFile
from gpx.errors import DataError


def write(folder: Path, text: str, name: str = "rows.csv") -> str:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode())
    return str(path)


@pytest.mark.parametrize("separator", [",", ";", "\t", " ", ", ", "   "])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("name", ["rows.csv", "rows.txt.gz"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_layout(tmp_path: Path, separator: str, header: bool, name: str, ending: str) -> None:
    lines = [["1", "-2.5", "3e2"], ["4", ".5", "+6"]]
    if header:
        lines.insert(0, ["height", "width", "cost"])
    text = ending.join(separator.join(line) for line in lines) + ending
    table = CSVFile(write(tmp_path, text, name)).table()
    assert table.x.tolist() == [[1.0, -2.5], [4.0, 0.5]]
    assert table.y.tolist() == [300.0, 6.0]
    assert table.input_names == (("height", "width") if header else ("x1", "x2"))
    assert table.target_name == ("cost" if header else "y")
    assert table.name == "rows"
    assert len(next(iter(table.checksums.values()))) == 64


def test_blank_lines_quotes_marks_and_comment_sign(tmp_path: Path) -> None:
    text = '\ufeff\n# "a, b",c,d\n\n1,2,"3"\n   \n4,5,6\n\n'
    table = CSVFile(write(tmp_path, text)).table()
    assert table.input_names == ("a, b", "c")
    assert table.y.tolist() == [3.0, 6.0]


@pytest.mark.parametrize("words", [("false", "true"), ("False", "TRUE")])
def test_truth_values_are_zero_and_one(tmp_path: Path, words: tuple[str, str]) -> None:
    text = f"a,b,y\n1,2,{words[0]}\n3,4,{words[1]}\n"
    assert CSVFile(write(tmp_path, text)).table().y.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("target", "inputs", "x", "y"),
    [
        (None, None, [1, 2, 3], 4),
        ("b", None, [1, 3, 4], 2),
        (0, None, [2, 3, 4], 1),
        (-2, None, [1, 2, 4], 3),
        ("2", None, [1, 2, 4], 3),
        ("a", ["d", "b"], [4, 2], 1),
        ("a", [-1, "c"], [4, 3], 1),
    ],
)
def test_choice_of_columns(
    tmp_path: Path, target: str | int | None, inputs: list[str | int] | None, x: list, y: int
) -> None:
    path = write(tmp_path, "a,b,c,d\n1,2,3,4\n1,2,3,4\n")
    table = CSVFile(path, target=target, inputs=inputs).table()
    assert table.x[1].tolist() == x
    assert table.y[1] == y


def test_columns_that_are_not_asked_for_may_hold_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'day,x,y\n"Mon, 1st",1,2\nTue,3,4\n')
    assert CSVFile(path, inputs=["x"]).table().x.tolist() == [[1.0], [3.0]]
    with pytest.raises(DataError, match=r"line 2, column 1 \('day'\): found text 'Mon, 1st'"):
        CSVFile(path, categories=[]).table()


def test_relative_path_starts_at_root(tmp_path: Path) -> None:
    write(tmp_path, "1,2\n3,4\n")
    assert CSVFile("rows.csv", root=str(tmp_path)).table().y.tolist() == [2.0, 4.0]


HEADED = "a,b,y\n1,2,3\n4,5,6\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"rows.csv is empty, expected rows of numbers"),
        ("\n  \n", r"rows.csv is empty"),
        ("a,b,y\n", r"has a header \(line 1\) but no rows of numbers"),
        ("a,b,y\n1,2,3\n4,x,6\n", r"line 3, column 2 \('b'\): found text 'x', expected a number"),
        ("1,2,3\n\n4,x,6\n", r"line 3, column 2: found text 'x'"),
        ("1,2,3\n4,,6\n", r"line 2, column 2: found an empty cell, expected a number"),
        ("1;2;3\n4;5,5;6\n", r"line 2, column 2: found text '5,5'.*decimals with a point"),
        (HEADED + "7,8\n", r"line 4: found 2 columns, expected 3 .*separated by comma"),
        (HEADED + "7,8,9,10\n", r"line 4: found 4 columns, expected 3"),
        (HEADED + "7,nan,9\n", r"line 4, column 2 \('b'\): found nan, expected a finite number"),
        (HEADED + "7,8,-inf\n", r"line 4, column 3 \('y'\): found -inf, expected a finite"),
        (HEADED + "7,8,1e999\n", r"line 4, column 3 \('y'\): found 1e999, expected a finite"),
        (HEADED + "7,8,1_0\n", r"line 4, column 3 \('y'\): found text '1_0'"),
        ("a,b,a\n1,2,3\n", r"line 1: columns 1 and 3 are both named 'a'"),
        ("1,2,NA\n3,4,5\n", r"line 1, column 3: found text 'NA' beside numbers"),
        ("y\n1\n2\n", r"has one column, expected inputs and a target"),
        (",,\n1,2,3\n", r"line 1 has no names or numbers"),
        (HEADED + '7,"8,9\n1,2,3\n', r"line 4: a quote opens here and is not closed"),
        (HEADED + '7,"8,9\n1,"2",3\n', r"line 4: a quote opens here and is not closed"),
        (HEADED + '7,"8,9\n' + 40000 * "1,2,3\n", r"line 4: a quote opens here"),
        ('"a,b,y\n1,2,3\n', r"line 1: a quote opens here and is not closed"),
    ],
)
def test_each_fault_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        CSVFile(write(tmp_path, text), missing="refuse").table()
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "rows.csv") in str(caught.value)


@pytest.mark.parametrize("rows", ["7,8\n", "7,8,9,10\n"])
def test_ragged_rows_are_found_when_only_some_columns_are_read(tmp_path: Path, rows: str) -> None:
    with pytest.raises(DataError, match=r"line 4: found [24] columns, expected 3"):
        CSVFile(write(tmp_path, HEADED + rows), target="b", inputs=["a"]).table()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "z"}, "has no column 'z'; it has alpha, beta, y"),
        ({"target": "alfa"}, "has no column 'alfa'; nearest there: alpha"),
        ({"target": 3}, r"has 3 columns and no column number 3; expected -3 to 2"),
        ({"target": -4}, "no column number -4"),
        ({"inputs": ["beta", "y"]}, r"column 3 \('y'\) is used twice"),
        ({"inputs": ["beta", 1]}, r"column 2 \('beta'\) is used twice"),
        ({"inputs": ["gamma"]}, "has no column 'gamma'"),
    ],
)
def test_columns_that_do_not_exist(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        CSVFile(write(tmp_path, "alpha,beta,y\n1,2,3\n4,5,6\n"), **options).table()


def test_name_without_header(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column names, so 'price' cannot be found"):
        CSVFile(write(tmp_path, "1,2\n3,4\n"), target="price").table()


def test_header_made_of_numbers_can_be_declared(tmp_path: Path) -> None:
    path = write(tmp_path, "1990,1991,y\n1,2,3\n4,5,6\n")
    with pytest.raises(DataError, match="header=true or header=false"):
        CSVFile(path).table()
    assert CSVFile(path, target="1990", header=True).table().y.tolist() == [1.0, 4.0]


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, HEADED, "houses.csv")
    with pytest.raises(DataError, match=r"house.csv does not exist; nearest there: houses.csv"):
        CSVFile(str(tmp_path / "house.csv")).table()
    with pytest.raises(DataError, match="neither does its folder"):
        CSVFile(str(tmp_path / "nowhere" / "house.csv")).table()
    with pytest.raises(DataError, match="is a folder, expected a file"):
        CSVFile(str(tmp_path)).table()


def test_damaged_files(tmp_path: Path) -> None:
    path = Path(write(tmp_path, "1.5,2.5,3.5\n" * 1000, "rows.csv.gz"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged or truncated gzip file"):
        CSVFile(str(path)).table()
    other = tmp_path / "latin.csv"
    other.write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not text in UTF-8"):
        CSVFile(str(other)).table()


def test_quotes_in_columns_that_are_not_read(tmp_path: Path) -> None:
    head, rows = "name,a,y\n", '"two\nlines",1,2\n5" pipe,3,4\n"a, b",5,6\n'
    table = CSVFile(write(tmp_path, head + rows), inputs=1).table()
    assert table.x[:, 0].tolist() == [1.0, 3.0, 5.0]
    # the rows after an open quote must not be lost in its cell
    with pytest.raises(DataError, match="line 3: a quote opens here"):
        CSVFile(write(tmp_path, 'a,y,name\n1,2,n\n3,4,"n\n5,6,n\n'), inputs=0, target=1).table()


def test_what_is_no_file(tmp_path: Path) -> None:
    for source in (CSVFile("/dev/null"), NPZFile("/dev/null")):
        with pytest.raises(DataError, match="/dev/null is a device or a pipe"):
            source.table()


def test_one_input_needs_no_list(tmp_path: Path) -> None:
    path = write(tmp_path, "age,height,y\n1,2,3\n4,5,6\n")
    assert CSVFile(path, inputs="height").table().x.tolist() == [[2.0], [5.0]]
    assert CSVFile(path, inputs=0).table().x.tolist() == [[1.0], [4.0]]


@pytest.mark.parametrize(
    ("target", "inputs", "x", "y", "names"),
    [
        (["b", "d"], None, [1, 3], [2, 4], ("b", "d")),
        ([-1, 0], ["c"], [3], [4, 1], ("d", "a")),
        (["b"], None, [1, 3, 4], 2, ()),
    ],
)
def test_several_targets(
    tmp_path: Path, target: list, inputs: list | None, x: list, y: list | int, names: tuple
) -> None:
    path = write(tmp_path, "a,b,c,d\n1,2,3,4\n1,2,3,4\n")
    table = CSVFile(path, target=target, inputs=inputs).table()
    assert table.x[1].tolist() == x
    assert table.y[1].tolist() == y
    assert table.target_names == names
    assert table.target_name == (", ".join(names) or "b")


def test_several_targets_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "1,2,3\n4,5,6\n")
    assert CSVFile(path, target=[1, 2]).table().target_names == ("y1", "y2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": ["b", "b"]}, "'b'.* is used twice"),
        ({"target": ["a", "b"], "inputs": ["b"]}, "'b'.* is used twice"),
        ({"target": []}, "names no column"),
        ({"target": ["a", "e"]}, "no column 'e'"),
        ({"target": ["a", "b", "c", "d"]}, "0 inputs"),
    ],
)
def test_several_targets_that_cannot_be(tmp_path: Path, options: dict, words: str) -> None:
    path = write(tmp_path, "a,b,c,d\n1,2,3,4\n1,2,3,4\n")
    with pytest.raises(DataError, match=words):
        CSVFile(path, **options).table()


def test_cells_of_several_targets_may_be_empty(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,c\n1,2,3\n2,,4\n3,5,\n4,,\n5,6,nan\n")
    table = CSVFile(path, target=["b", "c"]).table()
    np.testing.assert_array_equal(table.x[:, 0], [1.0, 2.0, 3.0, 5.0])
    np.testing.assert_array_equal(table.y[:, 0], [2.0, np.nan, 5.0, 6.0])
    np.testing.assert_array_equal(table.y[:, 1], [3.0, 4.0, np.nan, np.nan])
    assert table.notes == "1 of 5 rows have no target and are left out"
    dropped = CSVFile(path, target=["b", "c"], missing="drop").table()
    assert dropped.y.tolist() == [[2.0, 3.0]]
    with pytest.raises(DataError, match=r"line 3, column 2 \('b'\): found an empty cell"):
        CSVFile(path, target="b", inputs=["a"], missing="refuse").table()
    with pytest.raises(DataError, match=r"line 3, column 2 \('b'\): found an empty cell"):
        CSVFile(
            path, target=["a", "c"], inputs=["b"], missing="refuse"
        ).table()  # inputs are as they were


def test_a_target_of_texts_is_a_category_by_number_if_columns_have_no_names(tmp_path: Path) -> None:
    path = write(tmp_path, "2,0.1,b\n1,0.2,a\n2,0.3,b\n")
    table = CSVFile(path, header=False, categories=[0, -1]).table()
    assert (table.y.tolist(), table.class_names) == ([1.0, 0.0, 1.0], ("a", "b"))
    assert table.coding is not None
    assert [each.column.kind for each in table.coding.columns] == ["category", "number"]
