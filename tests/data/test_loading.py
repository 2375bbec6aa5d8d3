from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from gpx.data import CSVFile, DataSource, Table, Task, load
from gpx.data.loading import warn_of_constants
from gpx.errors import DataError


class Given(DataSource):
    def __init__(self, x: np.ndarray, y: np.ndarray, split: int = 0) -> None:
        super().__init__(split=split)
        self.x, self.y = x, y

    def table(self) -> Table:
        names = tuple(f"a{i}" for i in range(self.x.shape[1]))
        return Table("given", self.x, self.y, names, "b", notes="a trap")


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + 5.0
Y = 4.0 + 2.0 * RANDOM.normal(size=60)


def test_statistics_come_from_training_rows_only() -> None:
    source = Given(X, Y)
    train, test = source.split_rows(source.table())
    reference = load(source, task="regression")
    changed_x, changed_y = X.copy(), Y.copy()
    changed_x[test] += 1e6
    changed_y[test] -= 1e6
    moved = load(Given(changed_x, changed_y), task="regression")
    assert torch.equal(moved.train_x, reference.train_x)
    assert torch.equal(moved.train_y, reference.train_y)
    np.testing.assert_allclose(reference.train_x.numpy().std(0), 1.0)
    expected = (X[test] - X[train].mean(0)) / X[train].std(0)
    np.testing.assert_allclose(reference.test_x.numpy(), expected, rtol=1e-12)
    expected = (Y[test] - Y[train].mean()) / Y[train].std()
    np.testing.assert_allclose(reference.test_y.numpy(), expected, rtol=1e-12)


def test_fields() -> None:
    data = load(Given(X, Y, split=3), task="regression")
    assert (data.name, data.split, data.notes) == ("given", 3, "a trap")
    assert (data.num_train, data.num_test, data.num_inputs, data.num_classes) == (54, 6, 3, 0)
    assert data.input_names == ("a0", "a1", "a2")
    assert data.target_name == "b"
    assert data.train_x.dtype == data.test_y.dtype == torch.float64
    assert data.to("cpu", torch.float32).train_x.dtype == torch.float32


def test_constant_columns_warn_by_name(caplog: pytest.LogCaptureFixture) -> None:
    x = X.copy()
    x[:, 1] = 0.1
    with caplog.at_level(logging.WARNING):
        data = load(Given(x, np.full(60, 2.0)), task="regression")
    inputs, target = (r.getMessage() for r in caplog.records)
    assert "constant in the training rows" in inputs
    assert "column 2 ('a1')" in inputs
    assert "target 'b'" in target
    assert torch.isfinite(data.train_x).all()
    assert (data.train_x[:, 1] == 0).all()
    assert (data.train_y == 0).all()


def test_many_constant_columns_are_counted_not_listed(caplog: pytest.LogCaptureFixture) -> None:
    """Such as the margins of images."""
    names = [f"pixel{i}" for i in range(50)]
    warn_of_constants("images", names, 50, np.ones(50, dtype=bool))
    assert caplog.messages == [
        "images: constant in the training rows, so centred but not scaled: input column "
        + ", ".join(f"{i + 1} ('pixel{i}')" for i in range(10))
        + " and 40 more"
    ]


@pytest.mark.parametrize("codes", [(0.0, 1.0), (-1.0, 1.0)])
def test_binary_labels_become_signs(codes: tuple[float, float]) -> None:
    y = np.where(Y > 4.0, codes[1], codes[0])
    source = Given(X, y)
    train, _ = source.split_rows(source.table())
    data = load(source, task="binary")
    assert data.train_y.tolist() == [1.0 if v > 4.0 else -1.0 for v in Y[train]]
    assert data.labels == codes
    assert data.num_classes == 2
    assert data.scaler.target_scale == 1
    assert data.scaler.target_mean == 0


@pytest.mark.parametrize(
    ("y", "found"), [([1.0, 3.0], "2 values"), ([1.0, 1.0], "single value 1"), ([0, 1, 2], "3 val")]
)
def test_other_binary_labels_are_refused(y: list[float], found: str) -> None:
    with pytest.raises(DataError, match=f"takes (the )?{found}.*expected two labels coded 0 and 1"):
        load(Given(X, np.resize(np.array(y, dtype=float), 60)), task="binary")


def test_classes_are_numbered_in_order() -> None:
    y = np.resize([7.0, -2.0, 3.0], 60)
    source = Given(X, y)
    train, _ = source.split_rows(source.table())
    data = load(source, task="multiclass")
    assert data.labels == (-2.0, 3.0, 7.0)
    assert [data.labels[int(c)] for c in data.train_y] == y[train].tolist()


def test_class_labels_must_be_whole() -> None:
    y = np.resize([0.0, 1.0, 2.5], 60)
    with pytest.raises(
        DataError, match=r"data row 3, target \('b'\): found 2.5 \(rows like this: 20\)"
    ):
        load(Given(X, y), task="multiclass")
    with pytest.raises(DataError, match="at least two classes"):
        load(Given(X, np.ones(60)), task="multiclass")


@pytest.mark.parametrize("value", [-1.0, 0.5])
def test_counts_must_be_counts(value: float) -> None:
    y = np.resize([0.0, 3.0, 10.0], 60)
    assert set(load(Given(X, y), task="count").train_y.tolist()) == {0.0, 3.0, 10.0}
    y[4] = value
    with pytest.raises(DataError, match=rf"data row 5, .*found {value:g} .*expected a count"):
        load(Given(X, y), task="count")


@pytest.mark.parametrize("value", [0.0, -0.1])
def test_positive_targets_stay_as_they_are(value: float) -> None:
    y = np.resize([0.5, 3.0, 1e4], 60)
    assert set(load(Given(X, y), task="positive").train_y.tolist()) == {0.5, 3.0, 1e4}
    y[4] = value
    with pytest.raises(DataError, match=rf"data row 5, .*found {value:g} .*expected a number abo"):
        load(Given(X, y), task="positive")


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.5])
def test_shares_must_lie_between_none_and_all(value: float) -> None:
    y = np.resize([0.2, 0.5, 0.999], 60)
    assert set(load(Given(X, y), task="proportion").train_y.tolist()) == {0.2, 0.5, 0.999}
    y[4] = value
    with pytest.raises(
        DataError, match=rf"data row 5, .*found {value:g} .*expected a proportion above"
    ):
        load(Given(X, y), task="proportion")


def test_a_class_in_an_order_that_no_training_row_has_is_named() -> None:
    source = Given(X, np.zeros(60))
    train, test = source.split_rows(source.table())
    y = np.resize([0.0, 1.0], 60)
    y[test] = 2.0
    with pytest.raises(DataError, match="no training row is of class 2, so that its cut points"):
        load(Given(X, y), task="ordinal")
    y[train[0]] = 2.0
    assert load(Given(X, y), task="ordinal").num_classes == 3


class Outputs(Given):
    def table(self) -> Table:
        return Table("given", self.x, self.y, ("a0", "a1", "a2"), "both", target_names=("b", "c"))


def test_several_targets_are_each_scaled_as_alone(caplog: pytest.LogCaptureFixture) -> None:
    both = np.stack([Y, 100.0 * X[:, 0] - 7.0], axis=1)
    data = load(Outputs(X, both), task="regression")
    assert (data.num_outputs, data.target_names) == (2, ("b", "c"))
    assert load(Given(X, Y), task="regression").num_outputs == 1
    for place in (0, 1):
        alone = load(Given(X, both[:, place]), task="regression")
        torch.testing.assert_close(data.train_y[:, place], alone.train_y)
        torch.testing.assert_close(data.test_y[:, place], alone.test_y)
        torch.testing.assert_close(
            data.scaler.original_std(data.test_y)[:, place], alone.scaler.original_std(alone.test_y)
        )
    raw = data.scaler.original_mean(data.train_y)
    torch.testing.assert_close(data.scaler.transform_targets(raw), data.train_y)
    both[:, 1] = 2.0
    with caplog.at_level(logging.WARNING):
        load(Outputs(X, both), task="regression")
    (warning,) = (r.getMessage() for r in caplog.records)
    assert "target 'c'" in warning


@pytest.mark.parametrize("task", ["binary", "multiclass", "count"])
def test_several_targets_are_numbers(task: Task) -> None:
    with pytest.raises(DataError, match=r"2 targets \(b, c\), .* takes one"):
        load(Outputs(X, np.zeros((60, 2))), task=task)


def test_hints_name_options_of_the_source_that_are_not_used(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.arange(60), rng.normal(size=60), np.exp(rng.normal(size=60))])
    path = tmp_path / "table.csv"
    np.savetxt(path, rows, delimiter=",", header="no,area,price", comments="")
    notes = load(CSVFile(str(path)), task="regression").notes
    assert "id=no" in notes
    assert "target_transform=log" in notes
    assert load(CSVFile(str(path), id="no", target_transform="log"), task="regression").notes == ""


def test_inputs_of_a_category_are_not_said_to_be_constant(tmp_path, caplog):
    rows = "".join(f"red,{i},{i * i}\n" for i in range(20))
    (tmp_path / "table.csv").write_text("colour,size,y\n" + rows)
    with caplog.at_level(logging.WARNING):
        data = load(CSVFile(str(tmp_path / "table.csv")), task="regression")
    assert (data.train_x[:, 0] == 1.0).all()  # neither centred nor scaled
    assert "constant" not in caplog.text


@pytest.mark.parametrize(("ratio", "hinted"), [(5.0, False), (20.0, True)])
def test_one_noise_column_for_targets_of_different_sizes_is_noted(
    tmp_path: Path, ratio: float, hinted: bool
) -> None:
    target = Y - Y.mean()
    columns = np.column_stack([X[:, 0], target, ratio * target[::-1], np.full(60, 0.1)])
    path = tmp_path / "table.csv"
    np.savetxt(path, columns, delimiter=",", header="x,low,high,v", comments="")
    given = {"path": str(path), "target": ["low", "high"], "noise": "v"}
    assert (
        "one column of variances for all" in load(CSVFile(**given), task="regression").notes
    ) == hinted
    both = np.column_stack([columns, columns[:, -1:]])
    np.savetxt(path, both, delimiter=",", header="x,low,high,v,w", comments="")
    assert not load(CSVFile(**given | {"noise": ["v", "w"]}), task="regression").notes


@pytest.mark.parametrize("task", ["binary", "multiclass", "ordinal"])
def test_labels_that_float64_rounds_are_not_taken_for_one_another(task: Task) -> None:
    y = np.where(Y > 4.0, 2.0**53, 5.0)  # 2^53 + 1 in float64
    with pytest.raises(DataError, match=r"found 9.0072e\+15 .*below 2\^53 .* number the classes"):
        load(Given(X, y), task=task)
    if task != "binary":
        held = load(Given(X, np.where(Y > 4.0, 2.0**53 - 1.0, 5.0)), task=task)
        assert held.labels == (5.0, 2.0**53 - 1.0)
