from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from gpx.data import NPZFile
from gpx.errors import DataError


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
    with pytest.raises(DataError, match="must be 1 for test rows"):
        NPZFile(str(path), test="wrong").table()
    with pytest.raises(DataError, match="has 3 rows but its test mask has 1"):
        NPZFile(str(path), test="short").table()


@pytest.mark.parametrize("column", ["x2", 1, [-1]])
def test_inputs_of_an_archive_may_stay_unscaled(tmp_path: Path, column) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.arange(20.0).reshape(10, 2) % 7, y=np.arange(10.0))
    assert NPZFile(str(path), unscaled=column).table().labels == (1,)
    with pytest.raises(DataError, match="has 2 columns and no column number 2; expected -2 to 1"):
        NPZFile(str(path), unscaled=2).table()


def test_archive_faults(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.ones(4), words=np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match="has 3 rows of inputs and 4 targets; expected the same"):
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
    with pytest.raises(DataError, match="'x' is not an array"):
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


def test_archive_of_a_single_number(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez(path, x=np.float64(3.0), y=np.zeros(3))
    with pytest.raises(DataError, match=r"expected \(n, d\)"):
        NPZFile(str(path)).table()


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
    with pytest.raises(DataError, match=r"of equal length|has shape \(3, 2\), exp"):
        NPZFile(path, x=columns).table()


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
@pytest.mark.parametrize("missing", ["refuse", "mean"])
def test_an_archive_with_other_names_than_columns(
    tmp_path: Path, names: list[str], missing: str
) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, x=np.zeros((3, 2)), y=np.zeros((3, 2)))
    said = rf"2 columns of \[3\] rows have {len(names)} names"
    with pytest.raises(DataError, match=said):
        NPZFile(path, input_names=names, missing=missing).table()
    with pytest.raises(DataError, match=said):
        NPZFile(path, target_names=names, missing=missing).table()


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ({"x": ["a", "y"]}, "in y= and x="),
        ({"x": "y"}, "in y= and x="),
        ({"x": ["a", "a"]}, "in x="),
        ({"x": ["a", "b"], "noise": "b"}, "in noise= and x="),
        ({"x": ["a", "b"], "weights": "b"}, "in weights= and x="),
        ({"x": ["a"], "noise": "b", "weights": "b"}, "in weights= and noise="),
        ({"x": ["a", "b"], "test": "b"}, "in test= and x="),
    ],
)
def test_an_array_is_used_once(tmp_path: Path, options: dict, roles: str) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, a=np.zeros(3), b=np.array([1.0, 0.0, 1.0]), y=np.ones(3))
    with pytest.raises(DataError, match=rf"is used twice, {roles}; expected different arrays"):
        NPZFile(path, **options).table()


def test_whole_numbers_that_float64_rounds_are_different_categories(tmp_path: Path) -> None:
    path, long = str(tmp_path / "a.npz"), 2**60 + np.array([1, 2, 1, 2])
    np.savez(path, code=long, y=np.arange(4.0))
    table = NPZFile(path, x=["code"], categories=["code"]).table()
    assert table.x[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert NPZFile(path, x=["code"]).table().x[:, 0].tolist() == long.astype(float).tolist()
