"""Rows in files against the same rows in memory."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpx.data import Stream, load
from gpx.data.stream import survey as survey_module
from gpx.errors import BackendUnavailable, ConfigError, DataError
from gpx.sampling.batches import batch_order

ROWS = 997
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3)) * [1.0, 5.0, 0.1] + [0.0, 100.0, -2.0]
Y = RNG.normal(size=ROWS) * 7.0 + 3.0


def write_pairs(folder: Path, x=X, y=Y, cuts=(0, 400, 401, ROWS)) -> Path:
    folder.mkdir(exist_ok=True)
    for part, (start, stop) in enumerate(itertools.pairwise(cuts)):
        np.save(folder / f"x_{part:03d}.npy", x[start:stop])
        np.save(folder / f"y_{part:03d}.npy", y[start:stop])
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "parts")


def everything(rows):
    return rows[torch.arange(len(rows))]


def original(data):
    """Training and test rows in the files' units: (n, d + 1) each."""
    scaler = data.scaler
    return [
        np.column_stack([scaler.original_inputs(x).numpy(), scaler.original_mean(y).numpy()])
        for x, y in (
            (everything(data.train_x), everything(data.train_y)),
            (data.test_x, data.test_y),
        )
    ]


def test_training_and_test_rows_are_the_rows_of_the_files(pairs):
    data = load(Stream(str(pairs)), task="regression")
    train, test = original(data)
    assert len(train) + len(test) == ROWS
    assert data.facts["train_rows"] == len(train) == data.num_train
    found = np.concatenate([train, test])
    wanted = np.column_stack([X, Y])
    order = [np.lexsort(rows.T[::-1]) for rows in (found.round(9), wanted.round(9))]
    np.testing.assert_allclose(found[order[0]], wanted[order[1]], rtol=1e-12, atol=1e-12)


def test_scaling_is_that_of_the_training_rows(pairs, monkeypatch):
    monkeypatch.setattr(survey_module, "CHUNK_BYTES", 2000)  # many chunks to merge
    data = load(Stream(str(pairs)), task="regression")
    train, _ = original(data)
    np.testing.assert_allclose(data.scaler.input_mean, train[:, :3].mean(0), rtol=1e-12)
    np.testing.assert_allclose(data.scaler.input_scale, train[:, :3].std(0), rtol=1e-12)
    np.testing.assert_allclose(float(data.scaler.target_scale), train[:, 3].std(), rtol=1e-12)
    assert abs(float(everything(data.train_y).mean())) < 1e-12


def test_over_all_splits_every_row_is_tested_once(pairs):
    tested = [original(load(Stream(str(pairs), split=s), task="regression"))[1] for s in range(10)]
    found = np.sort(np.concatenate(tested)[:, 3])
    np.testing.assert_allclose(found, np.sort(Y), rtol=1e-12)


def test_no_more_test_rows_than_asked_and_the_others_are_trained_on(pairs):
    data = load(Stream(str(pairs), max_test_rows=20), task="regression")
    assert 0 < data.num_test <= 20
    assert data.num_train == ROWS - data.num_test


@pytest.mark.parametrize("folds", [80, 100, 997])
def test_a_short_stream_has_as_many_folds_as_are_asked_for(pairs, folds):
    data = load(Stream(str(pairs), test_fraction=1 / folds, split=folds - 1), task="regression")
    assert 0 < data.num_test <= 2 * ROWS / folds
    assert data.num_train == ROWS - data.num_test


def test_blocks_are_smaller_only_if_folds_lack_blocks(tmp_path):
    folder = write_pairs(tmp_path / "short", X[:250], Y[:250], cuts=(0, 250))

    def tested(folds):
        splits = (Stream(str(folder), test_fraction=1 / folds, split=s) for s in range(folds))
        return sorted(load(each, task="regression").num_test for each in splits)

    assert tested(84) == [1, *83 * [3]]  # 250 // 64 rows: 84 blocks are enough
    assert tested(85) == [*45 * [2], *40 * [4]]  # 250 // 85 rows: 125 blocks


def test_no_more_folds_than_rows(pairs):
    with pytest.raises(DataError, match="has 997 rows, fewer than the 998 that 998 splits need"):
        load(Stream(str(pairs), test_fraction=1 / 998), task="regression")


def test_any_rows_are_had_whatever_the_cache_holds(pairs):
    whole = load(Stream(str(pairs)), task="regression").train_x
    dense = everything(whole)
    small = load(Stream(str(pairs), buffer_rows=30), task="regression").train_x
    assert small.cache.room < len(small.cache.blocks) / 5
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        rows = torch.randint(len(small), (50,), generator=generator)
        assert torch.equal(small[rows], dense[rows])
    assert torch.equal(torch.cat(list(small.split(64))), dense)
    assert len(small.cache._held) <= small.cache.room * small.cache.block_rows


@pytest.mark.parametrize("buffer_rows", [30, 131_072])
def test_rows_are_read_again_after_an_interrupted_read(pairs, monkeypatch, buffer_rows):
    dense = everything(load(Stream(str(pairs)), task="regression").train_x)
    rows = load(Stream(str(pairs), buffer_rows=buffer_rows), task="regression").train_x
    rows[0:5]

    def interrupted(start, stop):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rows.cache.parts, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rows[500:550]
    assert torch.equal(rows[500:550], dense[500:550])
    assert torch.equal(rows[0:5], dense[0:5])


def test_an_epoch_reads_little_more_than_every_row_once(tmp_path):
    x = np.arange(40_000.0)[:, None]
    folder = write_pairs(tmp_path / "long", x, x[:, 0], cuts=(0, 40_000))
    rows = load(Stream(str(folder), buffer_rows=8192), task="regression").train_x
    order = batch_order(rows, 256, seed=0)
    for step in range(order.per_epoch):
        rows[order.rows(step)]
    # pieces of four blocks that begin inside a block lie in five
    assert order.per_epoch * 256 <= rows.cache.record.rows <= 1.3 * len(rows)


def test_inputs_and_targets_of_a_batch_are_read_together(pairs):
    data = load(Stream(str(pairs), buffer_rows=50), task="regression").to("cpu", torch.float32)
    batch = torch.tensor([3, 500, 40])
    assert data.train_x[batch].dtype == torch.float32
    before = data.train_y.cache.record.rows
    assert data.train_y[batch].shape == (3,)
    assert data.train_y.cache.record.rows == before


def test_the_sample_is_of_training_rows(pairs):
    data = load(Stream(str(pairs), sample_rows=100), task="regression")
    train = {tuple(row) for row in everything(data.train_x).tolist()}
    x, y = data.sample
    assert 50 < len(x) == len(y) <= 100
    assert {tuple(row) for row in x.tolist()} <= train
    assert torch.equal(data.in_memory.train_x, x)


@pytest.mark.parametrize("layout", ["table", "pair", "tables", "float32"])
def test_layouts(tmp_path, pairs, layout):
    table = np.column_stack([X, Y])
    path, target = tmp_path / layout, None
    if layout == "table":
        path, target = tmp_path / "t.npy", 0
        np.save(path, np.roll(table, 1, axis=1))
    elif layout == "pair":
        path, target = tmp_path / "inputs.npy", "delay.npy"
        np.save(path, X)
        np.save(tmp_path / "delay.npy", Y)
    elif layout == "tables":
        path.mkdir()
        np.save(path / "a.npy", table[:300])
        np.save(path / "b.npy", table[300:])
    else:
        write_pairs(path, X.astype(np.float32), Y.astype(np.float32))
    expected = load(Stream(str(pairs)), task="regression")
    found = load(Stream(str(path), target), task="regression")
    tolerance = 1e-4 if layout == "float32" else 1e-12
    for ours, theirs in zip(original(found), original(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_several_targets(tmp_path):
    np.save(tmp_path / "t.npy", np.column_stack([Y, X, -Y]))
    data = load(Stream(str(tmp_path / "t.npy"), [0, 4]), task="regression")
    assert data.num_inputs == 3
    assert data.num_outputs == 2
    rows = data.train_y[torch.arange(10)]
    assert rows.shape == (10, 2)
    torch.testing.assert_close(rows[:, 0], -rows[:, 1], rtol=1e-12, atol=1e-12)


def test_files_of_their_own_to_test_on(tmp_path, pairs):
    other = write_pairs(tmp_path / "test", X[:50] + 1.0, Y[:50], cuts=(0, 50))
    data = load(Stream(str(pairs), test_path=str(other)), task="regression")
    assert (data.num_train, data.num_test) == (ROWS, 50)
    found = data.scaler.original_inputs(data.test_x)
    torch.testing.assert_close(found, torch.from_numpy(X[:50] + 1.0), rtol=1e-12, atol=1e-12)


def test_classes_are_coded(tmp_path):
    folder = write_pairs(tmp_path / "classes", y=np.where(Y > 3.0, 2, 1))
    data = load(Stream(str(folder)), task="binary")
    assert data.labels == (1.0, 2.0)
    assert set(everything(data.train_y).tolist()) == {-1.0, 1.0}
    assert load(Stream(str(folder)), task="count").train_y[torch.arange(50)].max() == 2.0


def test_checksum_knows_changed_rows(tmp_path, pairs):
    before = load(Stream(str(pairs)), task="regression").checksums
    assert load(Stream(str(pairs)), task="regression").checksums == before
    changed = Y.copy()
    changed[700] += 1e-9
    other = write_pairs(tmp_path / "other", y=changed)
    assert load(Stream(str(other)), task="regression").checksums != before


def broken(pairs: Path, how: str) -> None:
    x = pairs / "x_002.npy"
    values = np.load(x)
    if how == "short":
        x.write_bytes(x.read_bytes()[:-1000])
    elif how == "header":
        x.write_bytes(b"nothing" + x.read_bytes()[7:])
    elif how == "columns":
        np.save(x, values[:, :2])
    elif how == "text":
        np.save(x, values.astype(str))
    elif how == "objects":
        np.save(x, values.astype(object), allow_pickle=True)
    elif how == "nan":
        values[17, 1] = np.nan
        np.save(x, values)
    elif how == "huge":
        values[17, 1] = 1e200
        np.save(x, values)
    elif how == "alone":
        (pairs / "y_002.npy").unlink()
    elif how == "lengths":
        np.save(x, values[:-1])
    elif how == "axes":
        np.save(x, values[None])
    elif how == "by columns":
        np.save(x, np.asfortranarray(values))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("short", r"x_002.npy is truncated in row 555: its header says 596 rows and it holds 554"),
        ("header", r"x_002.npy is not a NumPy array, or its header is damaged"),
        ("columns", r"x_002.npy has 2 columns and .*x_000.npy has 3: all files"),
        ("text", r"x_002.npy has dtype <U\d+, expected real numbers"),
        ("objects", r"x_002.npy has dtype object, expected real numbers"),
        (
            "nan",
            r"x_002.npy, row 18, column 'x2': found nan, .*; rows that are read",
        ),
        ("huge", r"x_002.npy, row 18, column 'x2': found 1e\+200"),
        ("alone", r"y_002.npy is missing; every x\*.npy needs a y\*.npy"),
        ("lengths", r"x_002.npy has 595 rows and .*y_002.npy has 596"),
        ("axes", r"x_002.npy has shape \(1, 596, 3\), expected \(n, d\) or \(n,\)"),
        ("by columns", r"x_002.npy is stored column by column"),
    ],
)
def test_broken_parts_are_named(pairs, how, said):
    broken(pairs, how)
    with pytest.raises(DataError, match=said):
        load(Stream(str(pairs)), task="regression")


def test_a_file_that_shrinks_while_it_is_read(pairs):
    data = load(Stream(str(pairs), buffer_rows=14), task="regression")
    file = pairs / "x_000.npy"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(DataError, match=r"x_000.npy has become shorter while it was read"):
        everything(data.train_x)


def test_paths_and_targets_that_are_not_there(tmp_path, pairs):
    def said(path, target=None, **options):
        with pytest.raises(DataError) as error:
            load(Stream(str(path), target, **options), task="regression")
        return str(error.value)

    empty = tmp_path / "empty"
    empty.mkdir()
    np.save(tmp_path / "t.npy", np.column_stack([X, Y]))
    np.save(tmp_path / "one.npy", Y)
    np.save(tmp_path / "few.npy", np.ones((5, 2)))
    assert said(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'} does not exist"
    assert "holds no .npy or .parquet files" in said(empty)
    assert "target=delay does not exist" in said(pairs, "delay")
    assert "has 4 columns and no column number 4" in said(tmp_path / "t.npy", 4)
    assert "has no column names, so 'delay' cannot be found" in said(tmp_path / "t.npy", "delay")
    assert f"there is no {tmp_path / 'y.npy'}" in said(tmp_path / "t.npy", "y.npy")
    assert "one.npy has one column" in said(tmp_path / "one.npy")
    assert "5 rows, fewer than the 10" in said(tmp_path / "few.npy")
    assert "split=10 does not exist" in said(pairs, split=10)
    few = str(tmp_path / "few.npy")
    assert f"{few} has 1 inputs and 2 columns, {pairs} has 3 and 4" in said(pairs, test_path=few)


def test_numbers_in_files_have_an_order_of_their_own(tmp_path):
    files = Stream(str(write_pairs(tmp_path / "parts", y=np.arange(ROWS) % 3)))
    assert load(files, task="ordinal").labels == (0.0, 1.0, 2.0)
    with pytest.raises(DataError, match=r"holds numbers, which are already ordered: leave Ordinal"):
        load(files, task="ordinal", order=["a", "b", "c"])


def test_files_that_a_new_user_brings(tmp_path, pairs):
    """Tables of other kinds, what a file system hides, and the training rows as a test set."""
    table = np.column_stack([X, Y])
    np.savetxt(tmp_path / "t.csv", table, delimiter=",")
    np.savez(tmp_path / "t.npz", x=X, y=Y)
    np.save(tmp_path / "none.npy", table[:0])
    (pairs / "._x_000.npy").write_bytes(b"of a file system")
    for name in ("csv", "npz"):
        use = rf"use data={name.upper()}File\(\),"
        with pytest.raises(DataError, match=rf"t.{name} cannot be streamed.* {use}"):
            load(Stream(str(tmp_path / f"t.{name}")), task="regression")
    with pytest.raises(DataError, match=r"none.npy holds no rows$"):
        load(Stream(str(tmp_path / "none.npy")), task="regression")
    assert load(Stream(str(pairs)), task="regression").facts["rows"] == ROWS
    again = str(pairs / ".." / pairs.name)
    with pytest.raises(DataError, match=r"is the same as path=, whose rows are trained on"):
        load(Stream(str(pairs), test_path=again), task="regression")


def test_targets_that_are_no_classes_or_counts(pairs):
    with pytest.raises(DataError, match=r"y_000.npy, row 1, column 'y': found .* expected a count"):
        load(Stream(str(pairs)), task="count")
    with pytest.raises(DataError, match="takes 997 values"):
        load(Stream(str(pairs)), task="binary")


@pytest.mark.parametrize("name", ["max_test_rows", "sample_rows", "buffer_rows"])
def test_sizes_out_of_range(name):
    with pytest.raises(ConfigError, match=f"{name}=1 must be at least 2"):
        Stream("anywhere", **{name: 1})


def test_parquet_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    said = r"t.parquet is a Parquet file, which needs the package pyarrow: pip"
    with pytest.raises(BackendUnavailable, match=said):
        load(Stream(str(tmp_path / "t.parquet")), task="regression")


class TestParquet:
    @pytest.fixture
    def write(self, tmp_path, monkeypatch):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = tmp_path / "packed"
        folder.mkdir()

        def write(name, **columns):
            path = folder / f"{name}.parquet"
            parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
            return folder

        return write

    def test_rows_are_those_of_arrays(self, write, pairs):
        for name, rows in (("a", slice(0, 400)), ("b", slice(400, ROWS))):
            columns = {n: X[rows, i] for i, n in enumerate("uvw")}
            folder = write(name, late=Y[rows], **columns)
        found = load(Stream(str(folder), "late"), task="regression")
        assert found.input_names == ("u", "v", "w")
        assert found.target_name == "late"
        expected = load(Stream(str(pairs)), task="regression")
        for ours, theirs in zip(original(found), original(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)

    def test_what_is_wrong_is_named(self, write):
        write("a", u=X[:, 0], y=Y)
        folder = write("b", v=X[:, 0], y=Y)
        with pytest.raises(DataError, match=r"b.parquet and .*a.parquet have different columns"):
            load(Stream(str(folder)), task="regression")
        folder = write("b", u=np.where(Y > 9.0, "late", "early"), y=Y)
        with pytest.raises(DataError, match=r"b.parquet: column 'u' has the type string"):
            load(Stream(str(folder)), task="regression")
        missing = [None if i == 5 else float(v) for i, v in enumerate(X[:, 0])]
        folder = write("b", u=missing, y=Y)
        with pytest.raises(DataError, match=r"b.parquet, row 6, column 'u': found nan"):
            load(Stream(str(folder)), task="regression")
        with pytest.raises(DataError, match=r"a.parquet has no column 'yy'; nearest there: y"):
            load(Stream(str(folder), "yy"), task="regression")
        file = folder / "b.parquet"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(
            DataError, match=r"b.parquet is not a Parquet file, or is damaged or trunc"
        ):
            load(Stream(str(folder)), task="regression")

    def test_files_to_test_on_with_other_columns_or_another_order(self, write, tmp_path):
        folder = write("a", u=X[:, 0], v=X[:, 1], y=Y)
        other = tmp_path / "test.parquet"
        (folder / "a.parquet").rename(tmp_path / "train.parquet")
        train = str(tmp_path / "train.parquet")
        for columns, there, here in (("vuy", "v", "u"), ("uwy", "w", "v")):
            (write("t", **dict.fromkeys(columns, Y)) / "t.parquet").rename(other)
            said = f"has the column '{there}' where .* has '{here}'; expected the same columns"
            with pytest.raises(DataError, match=said):
                load(Stream(train, test_path=str(other)), task="regression")
