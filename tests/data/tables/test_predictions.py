from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from gpx.data import write_predictions
from gpx.errors import DataError, ShapeError


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "deeper/out.csv"])
def test_predictions_are_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    columns = [np.array([1.5, 1e-9]), np.array([0.1, 1 / 3]), np.zeros(2), np.ones(2)]
    write_predictions(path, *columns)
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if name.endswith("gz") else raw).decode()
    header, *rows = text.splitlines()
    assert header == "mean,std,lower,upper"
    values = np.array([[float(c) for c in row.split(",")] for row in rows])
    np.testing.assert_allclose(values, np.column_stack(columns), rtol=1e-9)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv, "writer", full)
    with pytest.raises(DataError, match=r"cannot write .*No space left"):
        write_predictions(path, *[np.ones(2)] * 4)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_lengths_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="expected the same"):
        write_predictions(tmp_path / "out.csv", [1.0], [1.0], [1.0], [1.0, 2.0])


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to"):
        write_predictions(tmp_path / "file" / "out.csv", [1.0], [1.0], [1.0], [1.0])


def test_predictions_of_several_outputs(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    parts = [base + np.arange(6.0).reshape(3, 2) for base in (0.0, 10.0, 20.0, 30.0)]
    write_predictions(path, *parts, target_names=("height", "width, left"))
    with path.open() as file:
        header, *rows = csv.reader(file)
    names = ["mean", "std", "lower", "upper"]
    assert header == [f"{n}_height" for n in names] + [f"{n}_width, left" for n in names]
    assert [float(c) for c in rows[1]] == [2.0, 12.0, 22.0, 32.0, 3.0, 13.0, 23.0, 33.0]


def test_texts_among_predictions(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    before = {'na"me': ["a, b", 'c"d\re']}
    write_predictions(path, *[np.array([1.5, 0.25])] * 4, before=before)
    with path.open(newline="") as file:
        found = list(csv.reader(file))
    assert found[0] == ['na"me', "mean", "std", "lower", "upper"]
    assert found[1] == ["a, b", *4 * ["1.5"]]
    assert found[2] == ['c"d\re', *4 * ["0.25"]]
