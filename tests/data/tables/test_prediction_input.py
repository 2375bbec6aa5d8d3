from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prediction_inputs import read_inputs

from gpx.data import read_rows
from gpx.data.columns.coding import CodedColumn, Coding
from gpx.data.columns.column import Column
from gpx.errors import DataError

NAMES = ("height", "width")


def write(folder: Path, text: str) -> Path:
    path = folder / "new.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "height,width\n1,2\n3,4\n",
        "width,height\n2,1\n4,3\n",
        "cost,width,remark,height\n9,2,fine,1\n9,4,poor,3\n",
    ],
)
def test_columns_are_matched(tmp_path: Path, text: str) -> None:
    assert read_inputs(write(tmp_path, text), NAMES).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_archive(tmp_path: Path) -> None:
    path = tmp_path / "new.npz"
    np.savez(path, x=np.ones((3, 2)))
    assert read_inputs(path, NAMES).shape == (3, 2)
    with pytest.raises(
        DataError, match=r"array 'x': expected inputs with 3 columns .* got shape \(3, 2\)"
    ):
        read_inputs(path, (*NAMES, "depth"))
    np.savez(path, x=np.array([[1.0, np.inf]]))
    with pytest.raises(
        DataError, match=r"data row 1, column 2 \('width'\): found inf, expected a finite"
    ):
        read_inputs(path, NAMES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "3 columns and no header line, expected the 2 inputs .*: height, width"),
        ("heigth,width\n1,2\n", "has no column 'height', .* nearest there: heigth"),
        ("p,width\n1,2\n", "has no column 'height', .* it has p, width"),
        ("width,height\n1,x\n", r"line 2, column 2 \('height'\): found text 'x'"),
        ("width,height\n1,\n", r"line 2, column 2 \('height'\): found an empty cell"),
        ("width,height\n1,nan\n", r"line 2, column 2 \('height'\): found nan"),
        ("", "is empty"),
        ("width,height\n", "but no rows"),
    ],
)
def test_faults(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_inputs(write(tmp_path, text), NAMES)


def test_missing_file(tmp_path: Path) -> None:
    write(tmp_path, "1,2\n")
    with pytest.raises(DataError, match=r"nearest there: new.csv"):
        read_inputs(tmp_path / "nwe.csv", NAMES)


MIXED = Coding(
    (
        CodedColumn(Column("size"), fill=(2.0,)),
        CodedColumn(Column("colour", "category", ("green", "red")), fill=(0.5, 0.5)),
    ),
    missing="mean",
    identifier="name",
    noise=("v",),
)


def test_rows_of_any_kind(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "v,colour,name,size\n0.5,red,a,1\n1,,b,\n"), MIXED)
    assert rows.identifiers == ["a", "b"]
    assert rows.noise is not None
    assert rows.noise.tolist() == [0.5, 1.0]
    assert MIXED(rows.frame).tolist() == [[1.0, 0.0, 1.0], [2.0, 0.5, 0.5]]
    plain = read_rows(write(tmp_path, "1,red\n2,green\n"), MIXED)
    assert (plain.identifiers, plain.noise) == (None, None)
    assert MIXED(plain.frame).tolist() == [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    with pytest.raises(DataError, match=r"line 2, column 1 \('v'\): found -1, expected a noise"):
        read_rows(write(tmp_path, "v,colour,size\n-1,red,1\n"), MIXED)
    with pytest.raises(DataError, match=r"line 3, column 2 \('size'\): found text 'x'"):
        MIXED(read_rows(write(tmp_path, "colour,size\nred,1\nred,x\n"), MIXED).frame)


def test_columns_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "new.npz"
    np.savez(path, size=np.array([1.0, np.nan]), colour=np.array(["red", "green"]))
    assert MIXED(read_rows(path, MIXED).frame).tolist() == [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    np.savez(path, size=np.ones(3), colour=np.array(["red", "green"]))
    with pytest.raises(DataError, match=r"shapes \[\(2,\), \(3,\)\], expected \(n,\)"):
        read_rows(path, MIXED)
    gaps = Coding((CodedColumn(Column("a"), (2.0,)), CodedColumn(Column("b"), (3.0,))))
    np.savez(path, x=np.array([[1.0, np.nan], [np.nan, 4.0]]))
    assert gaps(read_rows(path, gaps).frame).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    noisy = replace(gaps, noise=("v",), identifier="id")
    np.savez(path, a=np.ones(2), b=np.zeros(2), v=[0.0, 0.5], id=[2**60 + 1, 2**60 + 2])
    rows = read_rows(path, noisy)
    assert rows.identifiers == ["1152921504606846977", "1152921504606846978"]
    assert rows.noise is not None
    assert rows.noise.tolist() == [0.0, 0.5]
    np.savez(path, x=np.zeros((3, 2)), v=[0.0, 0.5])
    with pytest.raises(DataError, match=r"array 'v' has 2 values for 3 rows of inputs"):
        read_rows(path, noisy)


def test_columns_of_numbers_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "new.npz"
    np.savez(path, width=[2.0, 4.0], height=[1.0, 3.0], y=[0.0, 0.0])
    assert read_inputs(path, NAMES).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    np.savez(path, x=[1.0, 3.0], y=[2.0, 4.0])
    assert read_inputs(path, ("x", "y")).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    np.savez(path, x=[[1.0, 2.0], [3.0, 4.0]], y=[0.0, 0.0])  # y is the target
    assert read_inputs(path, ("x", "y")).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    np.savez(path, width=[2.0, 4.0])
    with pytest.raises(DataError, match=r"no array 'height', it has width; expected an array for"):
        read_inputs(path, NAMES)


def test_cells_are_texts_where_training_read_them_so(tmp_path: Path) -> None:
    codes = ("00501", "02139", "1.50")
    coding = Coding(
        (
            CodedColumn(Column("zip", "category", codes)),
            CodedColumn(Column("day", "date", form="%Y%m%d")),
        )
    )
    path = write(tmp_path, "zip,day,y\n02139,20210331,1\n1.50,20210401,2\n")
    assert coding(read_rows(path, coding).frame).tolist() == [
        [0.0, 1.0, 0.0, 18717.0],
        [0.0, 0.0, 1.0, 18718.0],
    ]


def test_numbers_may_name_columns(tmp_path: Path) -> None:
    for text in ("2019,2020\n1,2\n", "2020,2019\n2,1\n", "y,2019,2020\n0,1,2\n"):
        assert read_inputs(write(tmp_path, text), ("2019", "2020")).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("text", ["wall height\n1.5\n2\n", '"wall height"\r\n1.5\r\n2\r\n'])
def test_one_column_whose_name_has_blanks(tmp_path: Path, text: str) -> None:
    assert read_inputs(write(tmp_path, text), ("wall height",)).tolist() == [[1.5], [2.0]]
    assert read_inputs(write(tmp_path, "\n" + text), ("wall height",)).tolist() == [[1.5], [2.0]]
    with pytest.raises(DataError, match=r"line 3, column 1 .*found text 'x'"):
        read_inputs(write(tmp_path, text.replace("2", "x")), ("wall height",))


def test_a_row_without_any_value_is_a_row(tmp_path: Path) -> None:
    path = write(tmp_path, "size,colour\n1,red\n,\n\n3,green\n,\n")
    frame = read_rows(path, MIXED).frame
    assert MIXED(frame).tolist() == [[1, 0, 1], [2, 0.5, 0.5], [3, 1, 0], [2, 0.5, 0.5]]
    with pytest.raises(DataError, match=r"line 3, column 1 \('height'\): found an empty cell"):
        read_inputs(write(tmp_path, "height,width\n1,2\n,\n3,4\n"), NAMES)
    for end in (",\n", ",\n\n,\n"):  # a spreadsheet's, of a model that takes no missing values
        path = write(tmp_path, "height,width\n1,2\n3,4\n" + end)
        assert read_inputs(path, NAMES).tolist() == [[1.0, 2.0], [3.0, 4.0]]
