from __future__ import annotations

import gzip
import importlib.util
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpx.data import UCI, load
from gpx.data.folders import sha256
from gpx.data.sets import uci as module
from gpx.data.sets.uci import ALIASES, REVISION, UCI_SETS, Pinned, UCISet
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError

DATA = os.environ.get("GPX_DATA")
HERE = sorted(
    name
    for name, known in UCI_SETS.items()
    if DATA
    and (Path(DATA) / "uci" / name / "test_mask.csv.gz").is_file()
    and (known.data is None or (Path(DATA) / "uci" / name / "data.csv.gz").is_file())
)
needs_data = pytest.mark.skipif(
    not HERE, reason="the UCI sets are not on this machine (set GPX_DATA to their folder)"
)

ROWS = np.random.default_rng(0).normal(size=(30, 4)).round(6)
MASK = np.arange(30)[:, None] % 10 == np.arange(10)


def zipped(path: Path, rows: np.ndarray) -> Pinned:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows, delimiter=",", fmt="%.17g")
    return Pinned(path.stat().st_size, sha256(path))


@pytest.fixture
def tiny(mirror, cache: Path, monkeypatch: pytest.MonkeyPatch):
    """A set of 30 rows on the mirror, known to the registry as ``tiny``."""
    data = zipped(mirror.folder / "tiny" / "data.csv.gz", ROWS)
    mask = zipped(mirror.folder / "tiny" / "test_mask.csv.gz", MASK)
    monkeypatch.setitem(UCI_SETS, "tiny", UCISet(30, 3, mask, data))
    monkeypatch.setenv("GPX_DATA_URL", mirror.url)
    return mirror


def kept(cache: Path) -> list[str]:
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file())


def test_first_use_downloads_and_the_second_does_not(tiny, cache: Path) -> None:
    table = UCI("tiny", split=2).table()
    np.testing.assert_array_equal(np.column_stack([table.x, table.y]), ROWS)
    assert table.test_masks is not None
    assert (table.test_masks == MASK).all()
    assert kept(cache) == ["uci/tiny/data.csv.gz", "uci/tiny/test_mask.csv.gz"]
    assert tiny.requests == ["/tiny/data.csv.gz", "/tiny/test_mask.csv.gz"]
    data = load(UCI("tiny", split=2), task="regression")
    assert (data.num_train, data.num_test) == (27, 3)
    assert data.checksums["data.csv.gz"] == UCI_SETS["tiny"].data.sha256  # type: ignore[union-attr]
    assert len(tiny.requests) == 2


def test_address_given_as_argument_comes_first(
    tiny, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPX_DATA_URL", "http://127.0.0.1:1/nowhere")
    assert len(UCI("tiny", base_url=tiny.url + "/").table().y) == 30


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_bad_download_leaves_nothing_and_says_what_to_do(tiny, cache: Path, damage: str) -> None:
    file = tiny.folder / "tiny" / "data.csv.gz"
    content = file.read_bytes()
    message = {
        "truncated": rf"gave {len(content) // 2} bytes, expected {len(content)}",
        "changed": "has SHA-256",
        "missing": "answered 404",
    }[damage]
    if damage == "missing":
        file.unlink()
    else:
        half = content[: len(content) // 2]
        file.write_bytes(half if damage == "truncated" else bytes(reversed(content)))
    with pytest.raises(DataError, match=message) as caught:
        UCI("tiny").table()
    assert kept(cache) == []
    advice = f"put data.csv.gz and test_mask.csv.gz (from {tiny.url}/tiny/) into {cache}/uci/tiny"
    assert advice in str(caught.value)
    assert "root= or $GPX_DATA" in str(caught.value)


def test_folders_are_looked_in_in_order(
    tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    UCI("tiny").table()
    asked = len(tiny.requests)
    for place, value in (("shared/uci/tiny", 1.0), ("mine/tiny", 2.0)):
        folder = tmp_path / place
        shutil.copytree(cache / "uci" / "tiny", folder)
        zipped(folder / "data.csv.gz", np.full((30, 4), value))
    assert UCI("tiny").table().y[0] == ROWS[0, 3]
    monkeypatch.setenv("GPX_DATA", str(tmp_path / "shared"))
    assert UCI("tiny").table().y[0] == 1.0
    assert UCI("tiny", root=str(tmp_path / "mine")).table().y[0] == 2.0
    assert len(tiny.requests) == asked


def test_local_file_that_differs_is_used_with_a_warning(
    tiny, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    UCI("tiny").table()
    zipped(cache / "uci" / "tiny" / "data.csv.gz", ROWS + 1)
    with caplog.at_level(logging.WARNING):
        UCI("tiny").table()
    assert "differs from the published file" in caplog.text


def test_local_file_of_the_wrong_size_is_refused(tiny, cache: Path) -> None:
    UCI("tiny").table()
    file = cache / "uci" / "tiny" / "data.csv.gz"
    zipped(file, ROWS[:7])
    with pytest.raises(DataError, match="hold 7 rows, expected 30"):
        UCI("tiny").table()
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(DataError, match="is damaged"):
        UCI("tiny").table()


def test_root_that_does_not_exist(cache: Path) -> None:
    with pytest.raises(DataError, match=r"root=/no/such is not a folder"):
        UCI("kin40k", root="/no/such").table()


def test_set_without_pinned_data_says_so(cache: Path) -> None:
    with pytest.raises(DataError, match="not downloaded as its checksum is not known") as no:
        UCI("song").table()
    assert "put data.csv.gz and data1.csv.gz and test_mask.csv.gz" in str(no.value)
    assert kept(cache) == []


def test_set_in_two_parts(tiny, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("data.csv.gz", "data1.csv.gz")
    monkeypatch.setitem(UCI_SETS, "tiny", UCI_SETS["tiny"]._replace(data=None, parts=parts))
    zipped(cache / "uci" / "tiny" / parts[0], ROWS[:20])
    zipped(cache / "uci" / "tiny" / parts[1], ROWS[20:])
    np.testing.assert_array_equal(UCI("tiny").table().y, ROWS[:, 3])
    assert tiny.requests == ["/tiny/test_mask.csv.gz"]


def test_the_default_address_is_pinned() -> None:
    assert len(REVISION) == 40
    assert UCI("pol").base_url == module.COLLECTION
    assert module.COLLECTION.startswith("https://")
    assert REVISION in module.COLLECTION


def test_aliases() -> None:
    assert UCI("poletele").name == "pol"
    assert UCI("kegg").name == "keggdirected"
    assert UCI("KEGGU").name == "keggundirected"
    assert UCI("slump").known.n == 103
    assert len(ALIASES) == 13
    assert not set(ALIASES) & set(UCI_SETS)


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no UCI data set 'kin40'; nearest: kin40k"):
        UCI("kin40")


def test_script(tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[3] / "scripts" / "download_data.py"
    spec = importlib.util.spec_from_file_location("download_data", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    assert script.main(["--list"]) == 0
    assert {"keggundirected", "abalone"} <= set(capsys.readouterr().out.split())
    assert script.main(["tiny", "--to", str(tmp_path / "to")]) == 0
    assert kept(tmp_path / "to") == ["tiny/data.csv.gz", "tiny/test_mask.csv.gz"]
    assert script.main(["challenger", "--to", str(tmp_path / "to")]) == 1
    assert "answered 404" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        script.main(["kin40"])
    assert "nearest: kin40k" in capsys.readouterr().err


@needs_data
@pytest.mark.parametrize("name", HERE)
def test_registry_matches_the_files(name: str) -> None:
    folder, known = Path(str(DATA)) / "uci" / name, UCI_SETS[name]
    pins = {"test_mask.csv.gz": known.mask, "data.csv.gz": known.data}
    for file, pinned in pins.items():
        if pinned is not None:
            assert (folder / file).stat().st_size == pinned.size
            assert sha256(folder / file) == pinned.sha256
    if known.data is not None:
        table = UCI(name).table()
        assert table.x.shape == (known.n, known.d)
        assert table.test_masks is not None
        assert (table.test_masks.sum(1) == 1).all()


@needs_data
def test_constant_column_of_keggundirected(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        data = load(UCI("keggu"), task="regression")
    assert "input column 10 ('x10')" in caplog.text
    assert (data.train_x[:, 9] == 0).all()
    assert bool(data.train_x.isfinite().all())
    assert bool(data.test_x.isfinite().all())


RANDOM_SPLITS = {
    "bike": 11643,
    "elevators": 11121,
    "pol": 10050,
    "kin40k": 26800,
    "protein": 30639,
    "keggundirected": 42617,
}


@pytest.mark.parametrize("name", RANDOM_SPLITS)
def test_random_splits_have_the_sizes_of_the_published_comparison(name):
    rows = UCI_SETS[name].n
    table = Table(
        name=name,
        x=np.zeros((rows, 1)),
        y=np.zeros(rows),
        input_names=("x1",),
        target_name="y",
        origin="made here",
    )
    first, second = (UCI(name, split=k, train_fraction=0.67).split_rows(table) for k in (0, 1))
    again = UCI(name, split=0, train_fraction=0.67).split_rows(table)
    assert len(first[0]) == RANDOM_SPLITS[name]
    assert np.array_equal(np.sort(np.concatenate(first)), np.arange(rows))
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], second[0])


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"train_fraction=1\.0 is not between 0 and 1"):
        UCI("kin40k", train_fraction=1.0)


def test_a_share_that_leaves_nothing_to_train_on():
    table = Table("given", np.zeros((20, 1)), np.zeros(20), ("x1",), "y")
    with pytest.raises(DataError, match="split 0 leaves 1 training and 19 test rows"):
        UCI("kin40k", train_fraction=0.05).split_rows(table)


def test_a_part_with_other_columns_is_named(tiny, cache: Path, monkeypatch: pytest.MonkeyPatch):
    parts = ("data.csv.gz", "data1.csv.gz")
    monkeypatch.setitem(UCI_SETS, "tiny", UCI_SETS["tiny"]._replace(data=None, parts=parts))
    zipped(cache / "uci" / "tiny" / parts[0], ROWS[:20])
    zipped(cache / "uci" / "tiny" / parts[1], ROWS[20:, :3])
    with pytest.raises(DataError, match=r"data1.csv.gz holds 10 rows of 3 columns, expected 4"):
        UCI("tiny").table()
