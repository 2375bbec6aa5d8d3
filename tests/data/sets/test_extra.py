from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from gpx.data import ExtraTable, load
from gpx.data.sets.extra import EXTRA_SETS
from gpx.errors import ConfigError, DataError

DATA = os.environ.get("GPX_DATA")


def write(folder: Path, rows: int, columns: str = "t\nvalue (y)\n") -> None:
    folder.mkdir(parents=True)
    text = "".join(f"{i},{i % 7}\n" for i in range(rows))
    (folder / "data.csv.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "columns.txt").write_text(columns)


def test_table(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "extra" / "airline_passengers", 144)
    data = load(ExtraTable("airline_passengers", root=str(tmp_path), split=9), task="regression")
    assert (data.input_names, data.target_name) == (("t",), "value")
    assert data.num_train + data.num_test == 144


def test_wrong_size(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "airline_passengers", 100)
    with pytest.raises(DataError, match="holds 100 rows of 2 columns, expected 144 rows"):
        ExtraTable("airline_passengers", root=str(tmp_path)).table()
    write(tmp_path / "snelson1d", 200, columns="x\n")
    with pytest.raises(DataError, match=r"columns.txt names 1 columns, expected 2"):
        ExtraTable("snelson1d", root=str(tmp_path)).table()


def test_missing_set_says_where_to_put_it(cache: Path) -> None:
    with pytest.raises(DataError, match=r"banana: data.csv.gz is in none of") as caught:
        ExtraTable("banana").table()
    assert str(cache / "extra" / "banana") in str(caught.value)


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match="no extra data set 'apple'; known: airline_passengers"):
        ExtraTable("apple")


@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "extra").is_dir(),
    reason="the extra sets are not on this machine (set GPX_DATA to their folder)",
)
@pytest.mark.parametrize("name", EXTRA_SETS)
def test_registry_matches_the_files(name: str) -> None:
    source = ExtraTable(name)
    table = source.table()
    assert table.x.shape == (EXTRA_SETS[name].n, EXTRA_SETS[name].d)
    if table.test_masks is not None:
        assert (table.test_masks.sum(1) == 1).all()
    train, test = source.split_rows(table)
    assert len(train) + len(test) == len(table.y)
