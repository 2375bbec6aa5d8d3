from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest

from gpx.data import ParquetFile, load, read_rows
from gpx.data.columns.coding import CodedColumn, Coding
from gpx.data.columns.column import Column
from gpx.errors import BackendUnavailable, ConfigError, DataError


def test_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(
        BackendUnavailable, match=r"needs the package pyarrow: pip install .gpx-torch.parquet"
    ):
        ParquetFile(str(tmp_path / "t.parquet")).table()


class TestWithItsPackage:
    @pytest.fixture
    def write(self, tmp_path: Path):  # type: ignore[no-untyped-def]
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        def write(**columns: object) -> str:
            path = tmp_path / "t.parquet"
            parquet.write_table(pyarrow.table(columns), path)
            return str(path)

        return write

    @pytest.fixture
    def columns(self) -> dict:
        return {
            "name": [f"r{i}" for i in range(12)],
            "colour": ["red", "green", None] * 4,
            "when": [date(2021, 1, 1 + i) for i in range(12)],
            "count": [1, None, 3, 4] * 3,
            "flag": [True, False] * 6,
            "y": [float(i) for i in range(12)],
        }

    def test_columns_of_every_type(self, write, columns) -> None:  # type: ignore[no-untyped-def]
        path = write(**columns)
        with pytest.raises(DataError, match=r"data row 3, column 1 \('colour'\): found an empty"):
            ParquetFile(path, id="name", missing="refuse").table()
        data = load(ParquetFile(path, id="name"), task="regression")
        assert data.input_names == (
            *("colour=green", "colour=red", "colour is missing"),
            *("when (days since 1970-01-01)", "count", "count is missing", "flag"),
        )
        assert data.coding is not None
        rows = read_rows(path, data.coding)
        assert rows.identifiers == [f"r{i}" for i in range(12)]
        inputs = data.coding(rows.frame)
        assert inputs[0].tolist() == [0.0, 1.0, 0.0, 18628.0, 1.0, 0.0, 1.0]
        assert inputs[1, 4:].tolist() == [pytest.approx(8 / 3, abs=0.2), 1.0, 0.0]

    def test_names_of_rows_are_exact(self, write) -> None:  # type: ignore[no-untyped-def]
        names = [2**60 + 1, 2**60 + 2, None]
        path = write(id=names, x=[1, 2, 3])
        coding = Coding((CodedColumn(Column("x")),), identifier="id")
        rows = read_rows(path, coding)
        assert rows.identifiers == ["1152921504606846977", "1152921504606846978", ""]
        assert coding(rows.frame).tolist() == [[1.0], [2.0], [3.0]]

    def test_times_are_cut_off_after_microseconds(self, write) -> None:  # type: ignore[no-untyped-def]
        pyarrow = pytest.importorskip("pyarrow")
        day = 86_400 * 10**9
        when = pyarrow.array([day + 1, 2 * day + 1999, -1], pyarrow.timestamp("ns"))
        table = ParquetFile(write(when=when, y=[1.0, 2.0, 3.0])).table()
        assert table.x[:, 0].tolist() == [1.0, 2.0 + 1e-6 / 86_400, -1e-6 / 86_400]

    def test_texts_coded_by_a_dictionary(self, write) -> None:  # type: ignore[no-untyped-def]
        pyarrow = pytest.importorskip("pyarrow")
        kinds = pyarrow.array(["b", "a", "b", None]).dictionary_encode()
        table = ParquetFile(write(kind=kinds, y=[1, 2, 3, 4]), missing="drop").table()
        assert table.x[:, 0].tolist() == [1.0, 0.0, 1.0]

    def test_faults(self, write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(DataError, match=r"the column 'a' has the type list<.*expected numbers"):
            ParquetFile(write(a=[[1], [2]], y=[1, 2])).table()
        with pytest.raises(DataError, match="has no column 'z'"):
            ParquetFile(write(a=[1, 2], y=[1, 2]), target="z").table()
        with pytest.raises(DataError, match="has no rows"):
            ParquetFile(write(a=[], y=[])).table()
        with pytest.raises(ConfigError, match="header=False: columns of Parquet files have names"):
            ParquetFile(write(a=[1], y=[2]), header=False).table()
        (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing more")
        with pytest.raises(DataError, match="is not a Parquet file, or is damaged"):
            ParquetFile(str(tmp_path / "broken.parquet")).table()
