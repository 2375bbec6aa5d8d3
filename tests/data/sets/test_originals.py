from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gpx.data import OriginalTable, load
from gpx.data.folders import find, sha256
from gpx.data.sets.originals import ORIGINAL_SETS, SEXES
from gpx.data.sets.uci import Pinned
from gpx.data.sets.workbook import SHEET, first_sheet
from gpx.errors import ConfigError, DataError

SHELLS = "Sex,Length,Rings\nM,0.455,15\nF,0.53,9\nI,0.33,7\n" + "M,0.5,9\n" * 9
NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


@pytest.fixture
def shells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abalone with 12 rows and two inputs."""
    known = ORIGINAL_SETS["abalone"]._replace(n=12, columns=("sex", "length", "rings"))
    monkeypatch.setitem(ORIGINAL_SETS, "abalone", known)


def written(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def workbook(path: Path, *rows: str) -> Path:
    body = "".join(f"<row>{row}</row>" for row in ("<c t='s'><v>0</v></c>", *rows))
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(SHEET, f"<worksheet xmlns='{NAMESPACE}'>{body}</worksheet>")
    return path


def test_sexes_are_numbers_with_and_without_a_header(
    shells: None, tmp_path: Path, cache: Path
) -> None:
    written(tmp_path / "abalone", "abalone.data", SHELLS.partition("\n")[2])
    written(tmp_path / "uci" / "abalone", "abalone.csv", SHELLS)
    table = OriginalTable("abalone", root=str(tmp_path)).table()
    assert table.x[:3].tolist() == [[0.0, 0.455], [1.0, 0.53], [-1.0, 0.33]]
    assert (table.y[:3].tolist(), table.target_name) == ([15.0, 9.0, 7.0], "rings")
    (tmp_path / "abalone" / "abalone.data").unlink()
    again = OriginalTable("abalone", root=str(tmp_path)).table()
    np.testing.assert_array_equal(again.x, table.x)
    data = load(OriginalTable("abalone", root=str(tmp_path), split=3), task="regression")
    assert data.num_train + data.num_test == 12


def test_names_and_spaces_of_kin8nm(tmp_path: Path, cache: Path, monkeypatch) -> None:
    known = ORIGINAL_SETS["kin8nm"]._replace(n=2, columns=("a", "y"))
    monkeypatch.setitem(ORIGINAL_SETS, "kin8nm", known)
    written(tmp_path / "kin8nm", "kin8nm.csv", '"a","y"\n-1.5e-02, 3.0e-01\n2.0, 4\n')
    table = OriginalTable("kin8nm", root=str(tmp_path)).table()
    assert (table.x.tolist(), table.y.tolist()) == ([[-0.015], [2.0]], [0.3, 4.0])


def test_workbooks(tmp_path: Path) -> None:
    cells = ["<c r='A2'><v>14.96</v></c><c r='B2'><v>463</v></c>", "<c><v>1</v></c><c><v>2</v></c>"]
    inner = workbook(tmp_path / "inner.xlsx", *cells)
    assert first_sheet(inner).tolist() == [[14.96, 463.0], [1.0, 2.0]]
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as packed:
        packed.write(inner, "CCPP/inner.xlsx")
    assert first_sheet(tmp_path / "outer.zip").tolist() == [[14.96, 463.0], [1.0, 2.0]]
    with pytest.raises(DataError, match="cell B2 holds no number"):
        first_sheet(workbook(tmp_path / "text.xlsx", "<c r='B2' t='s'><v>3</v></c>"))
    with pytest.raises(DataError, match=r"ragged.xlsx is damaged"):
        first_sheet(workbook(tmp_path / "ragged.xlsx", "<c><v>3</v></c>", cells[0]))
    (tmp_path / "no.zip").write_bytes(b"PK damaged")
    with pytest.raises(DataError, match=r"no.zip is damaged \(File is not a zip file\)"):
        first_sheet(tmp_path / "no.zip")


def test_another_size_is_refused(shells: None, tmp_path: Path, cache: Path) -> None:
    written(tmp_path / "abalone", "abalone.data", SHELLS[: SHELLS.rindex("M")])
    with pytest.raises(DataError, match=r"shape \(11, 3\), expected 12 rows of 3 columns"):
        OriginalTable("abalone", root=str(tmp_path)).table()
    written(tmp_path / "abalone", "abalone.data", "M,0.5,9\nF,0.5\n")
    with pytest.raises(DataError, match=r"abalone.data is damaged"):
        OriginalTable("abalone", root=str(tmp_path)).table()


def test_downloads_what_is_missing(
    shells: None, mirror, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(mirror.folder, "abalone.data", SHELLS)
    served = mirror.folder / "abalone.data"
    pinned = Pinned(served.stat().st_size, sha256(served))
    known = ORIGINAL_SETS["abalone"]._replace(url=f"{mirror.url}/abalone.data", pinned=pinned)
    monkeypatch.setitem(ORIGINAL_SETS, "abalone", known)
    table = OriginalTable("abalone").table()
    assert table.origin == str(cache / "uci" / "abalone" / "abalone.data")
    assert table.checksums == {"abalone.data": pinned.sha256}
    monkeypatch.setitem(ORIGINAL_SETS, "abalone", known._replace(url=f"{mirror.url}/none"))
    OriginalTable("abalone").table()
    assert OriginalTable("abalone").fetch(cache / "uci") == [Path(table.origin)]
    (cache / "uci" / "abalone" / "abalone.data").unlink()
    with pytest.raises(DataError, match="could not be downloaded") as caught:
        OriginalTable("abalone").table()
    assert "UCI data set 1, Abalone" in str(caught.value)


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match="no data set 'apple'; known: abalone"):
        OriginalTable("apple")


@pytest.mark.parametrize("name", ORIGINAL_SETS)
def test_registry_matches_the_files(name: str) -> None:
    known = ORIGINAL_SETS[name]
    folders = [Path(os.environ.get("GPX_DATA", ".")) / end / name for end in ("", "uci")]
    if find(folders, *known.files) is None:
        pytest.skip("the file is not on this machine (set GPX_DATA to its folder)")
    table = OriginalTable(name).table()
    assert table.x.shape == (known.n, len(known.columns) - 1)
    if name == "abalone":
        assert set(table.x[:, 0]) == set(map(float, SEXES.values()))
