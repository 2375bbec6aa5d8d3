from __future__ import annotations

import gzip
import zipfile
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
        ("a,b,a\n1,2,3\n", r"line 1: the name 'a' heads both column 1 and column 3"),
        ("1,2,NA\n3,4,5\n", r"line 1, column 3: found text 'NA' beside numbers"),
        ("y\n1\n2\n", r"has one column, expected inputs and a target"),
        (",,\n1,2,3\n", r"line 1 is blank but for signs; expected names or numbers"),
        (HEADED + '7,"8,9\n1,2,3\n', r"line 4: a quote opens here and is not closed"),
        (HEADED + '7,"8,9\n1,"2",3\n', r"line 4: a quote opens here and is not closed"),
        (HEADED + '7,"8,9\n' + 40000 * "1,2,3\n", r"line 4: a quote opens here"),
        ('"a,b,y\n1,2,3\n', r"line 1: a quote opens here and is not closed"),
    ],
)
def test_each_fault_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        CSVFile(write(tmp_path, text)).table()
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "rows.csv") in str(caught.value)


@pytest.mark.parametrize("rows", ["7,8\n", "7,8,9,10\n"])
def test_ragged_rows_are_found_when_only_some_columns_are_read(tmp_path: Path, rows: str) -> None:
    with pytest.raises(DataError, match=r"line 4: found [24] columns, expected 3"):
        CSVFile(write(tmp_path, HEADED + rows), target="b", inputs=["a"]).table()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "z"}, "has no column 'z'; columns: alpha, beta, y"),
        ({"target": "alfa"}, "has no column 'alfa'; nearest: alpha"),
        ({"target": 3}, r"has 3 columns, so there is no column number 3; expected -3 to 2"),
        ({"target": -4}, "no column number -4"),
        ({"inputs": ["beta", "y"]}, r"column 3 \('y'\) is asked for twice"),
        ({"inputs": ["beta", 1]}, r"column 2 \('beta'\) is asked for twice"),
        ({"inputs": ["gamma"]}, "has no column 'gamma'"),
    ],
)
def test_columns_that_do_not_exist(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        CSVFile(write(tmp_path, "alpha,beta,y\n1,2,3\n4,5,6\n"), **options).table()


def test_name_without_header(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no header line, so no column is called 'price'"):
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
    with pytest.raises(DataError, match="nor does its folder"):
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


def test_archive(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    x = np.arange(6).reshape(3, 2)
    np.savez(path, x=x, y=np.array([[1.0], [2.0], [3.0]]), flag=np.array([True, False, True]))
    table = NPZFile(str(path)).table()
    assert table.x.dtype == np.float64
    assert table.x.tolist() == x.tolist()
    assert table.y.tolist() == [1.0, 2.0, 3.0]
    assert NPZFile(str(path), y="flag").table().y.tolist() == [1.0, 0.0, 1.0]
    assert NPZFile(str(path), x="flag").table().x.shape == (3, 1)


def test_archive_with_test_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    marks = np.array([True, False, False])
    both = np.stack([marks, ~marks], axis=1)
    np.savez(path, x=np.ones((3, 2)), y=np.ones(3), one=marks, two=both, wrong=[0, 2, 1], short=[1])
    source = NPZFile(str(path), test="one")
    assert [rows.tolist() for rows in source.split_rows(source.table())] == [[1, 2], [0]]
    second = NPZFile(str(path), test="two", split=1)
    masks = second.table().test_masks
    assert masks is not None
    assert masks.tolist() == both.tolist()
    with pytest.raises(DataError, match="must mark test rows by 1"):
        NPZFile(str(path), test="wrong").table()
    with pytest.raises(DataError, match="has 3 rows but its test mask has 1"):
        NPZFile(str(path), test="short").table()


def test_archive_faults(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.ones(4), words=np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"inputs of shape \(3, 2\) and a target of shape \(4,\)"):
        NPZFile(str(path)).table()
    with pytest.raises(DataError, match=r"no array 'z', it has x, y, words; .* y="):
        NPZFile(str(path), y="z").table()
    with pytest.raises(DataError, match="'words' has dtype <U1, expected real numbers"):
        NPZFile(str(path), x="words").table()
    np.savez(path, x=np.array([[1.0], [np.nan]]), y=np.ones(2))
    with pytest.raises(DataError, match=r"rows.npz, data row 2, column 1 \('x1'\): found nan"):
        NPZFile(str(path)).table()
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match="is not a NumPy archive or is damaged"):
        NPZFile(str(path)).table()
    np.savez(path, x=np.array([{}], dtype=object), y=np.ones(1))
    with pytest.raises(DataError, match="array 'x' holds objects, expected numbers"):
        NPZFile(str(path)).table()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "no array")
    with pytest.raises(DataError, match="'x' is a file but no array"):
        NPZFile(str(path)).table()
    np.save(tmp_path / "single.npy", np.ones(3))
    with pytest.raises(DataError, match="holds a single array"):
        NPZFile(str(tmp_path / "single.npy")).table()


@pytest.mark.parametrize("shape", ["(687194767360,)", "(99999999999999999999999,)", "(3"])
def test_archive_that_claims_what_cannot_be(tmp_path: Path, shape: str) -> None:
    words = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    header = b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words.encode()
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("x.npy", header + bytes(80))
    with pytest.raises(DataError, match=r"rows.npz: array 'x' cannot be read"):
        NPZFile(str(tmp_path / "rows.npz")).table()


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


def test_archive_of_a_single_number(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez(path, x=np.float64(3.0), y=np.zeros(3))
    with pytest.raises(DataError, match=r"expected \(n, d\)"):
        NPZFile(str(path)).table()


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
        ({"target": ["b", "b"]}, "'b'.* asked for twice"),
        ({"target": ["a", "b"], "inputs": ["b"]}, "'b'.* asked for twice"),
        ({"target": []}, "names no column"),
        ({"target": ["a", "e"]}, "no column 'e'"),
        ({"target": ["a", "b", "c", "d"]}, "0 inputs"),
    ],
)
def test_several_targets_that_cannot_be(tmp_path: Path, options: dict, words: str) -> None:
    path = write(tmp_path, "a,b,c,d\n1,2,3,4\n1,2,3,4\n")
    with pytest.raises(DataError, match=words):
        CSVFile(path, **options).table()


def test_an_archive_of_several_targets(tmp_path: Path) -> None:
    y = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 1)), y=y)
    table = NPZFile(str(tmp_path / "a.npz")).table()
    assert table.target_names == ("y1", "y2")
    np.testing.assert_array_equal(table.y, y)
    named = NPZFile(str(tmp_path / "a.npz"), target_names=["b", "c"]).table()
    assert named.target_names == ("b", "c")


def test_an_archive_of_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(
        path,
        size=np.array([1.0, np.nan, 3.0, 4.0]),
        colour=np.array(["red", "green", "", "red"]),
        when=np.array(["2021-01-01", "2021-01-02", "2021-01-03", "NaT"], dtype="M8[D]"),
        kind=np.array(["b", "a", "b", "a"]),
        held=np.array([0, 0, 0, 1]),
    )
    columns = ["colour", "when", "size"]
    with pytest.raises(
        DataError, match=r"a.npz, data row 3, column 1 \('colour'\): found an empty"
    ):
        NPZFile(path, x=columns, y="kind").table()
    table = NPZFile(path, x=columns, y="kind", test="held", missing="drop").table()
    assert table.input_names == ("colour", "when", "size")
    assert table.x.tolist() == [[1.0, 18628.0, 1.0]]
    assert (table.y.tolist(), table.class_names) == ([0.0], ("b",))  # the one row left
    assert table.test_masks is not None
    assert table.test_masks.shape == (1, 1)
    filled = NPZFile(path, x=columns, y="kind", missing="mean", input_names=["a", "b", "c"]).table()
    assert (filled.input_names, len(filled.y)) == (("a", "b", "c"), 4)
    with pytest.raises(DataError, match="has no column 'color'; nearest there: colour"):
        NPZFile(path, x=columns, y="kind", categories=["color"]).table()
    with pytest.raises(DataError, match=r"'when' has dtype datetime64.D. .*texts .n,. for classes"):
        NPZFile(path, x=["size"], y="when").table()


def test_an_archive_with_gaps(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, x=np.array([[1.0, np.nan], [2.0, 3.0], [3.0, 4.0]]), y=np.arange(3.0))
    assert NPZFile(path, missing="drop").table().x.tolist() == [[2.0, 3.0], [3.0, 4.0]]
    table = NPZFile(path, missing="mean").table()
    assert table.coding is not None
    coding, made = table.coding.fitted(table.x, np.arange(3), "a")
    assert coding.input_names == ("x1", "x2", "x2 is missing")
    assert made[0].tolist() == [1.0, 3.5, 1.0]


@pytest.mark.parametrize("columns", [[], ["a", "b"], ["a", "wide"]])
def test_an_archive_of_columns_that_do_not_fit(tmp_path: Path, columns: list[str]) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, a=np.zeros(3), b=np.zeros(2), wide=np.zeros((3, 2)), y=np.zeros(3))
    with pytest.raises(DataError, match=r"expected equal lengths|has shape \(3, 2\), exp"):
        NPZFile(path, x=columns).table()
