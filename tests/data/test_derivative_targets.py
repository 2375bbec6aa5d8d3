"""Targets that are derivatives: which inputs they are by, and their scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpx.data import CSVFile, DataSource, Table, load
from gpx.data.dataset import Dataset
from gpx.errors import DataError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 3)) * [1.0, 10.0, 0.1] + 5.0
Y = RANDOM.normal(size=(40, 3)) * [7.0, 3.0, 50.0] + [100.0, 4.0, 0.0]


class Given(DataSource):
    def __init__(self, y=Y, names=("f", "df_a", "df_c"), **more):
        super().__init__(split=0)
        self.y, self.names, self.more = y, names, more

    def table(self) -> Table:
        single = self.y.ndim == 1
        return Table(
            name="given",
            x=X,
            y=self.y,
            input_names=("a", "b", "c"),
            target_name="f",
            target_names=() if single else self.names,
            **self.more,
        )


def loaded(source: DataSource, named=("a", "c")) -> Dataset:
    return load(source, task="regression", derivatives=True, with_respect_to=named)


def test_derivatives_are_scaled_as_values_and_inputs_are() -> None:
    data = loaded(Given())
    train, _ = Given().split_rows(Given().table())
    values, inputs = Y[train, 0].std(), X[train].std(0)
    scales = [values, values / inputs[0], values / inputs[2]]
    np.testing.assert_allclose(data.scaler.target_scale, scales)
    np.testing.assert_allclose(data.scaler.target_mean, [Y[train, 0].mean(), 0.0, 0.0])
    np.testing.assert_allclose(data.train_y[:, 2], Y[train, 2] / scales[2])
    assert data.derivatives == (0, 2)
    assert load(Given(), task="regression").derivatives == ()


def test_a_linear_function_keeps_its_slopes() -> None:
    """df/dx of standardised f and x is that of their standardised values."""
    slopes = np.array([3.0, -0.5, 20.0])
    data = loaded(Given(np.column_stack([X @ slopes, np.tile(slopes[[0, 2]], (40, 1))])))
    x = torch.cat([data.train_x, torch.ones(len(data.train_x), 1, dtype=torch.float64)], 1)
    found = torch.linalg.lstsq(x, data.train_y[:, 0]).solution
    torch.testing.assert_close(data.train_y[0, 1:], found[[0, 2]])


def test_inputs_are_named_or_numbered() -> None:
    names = ("f", "u", "v", "w")
    every = load(Given(np.column_stack([Y, Y[:, 1]]), names), task="regression", derivatives=True)
    assert every.derivatives == (0, 1, 2)
    assert loaded(Given(), [2, "b"]).derivatives == (2, 1)


def test_derivatives_may_all_be_missing_and_values_may_be_one() -> None:
    y = Y.copy()
    y[:, 1:] = np.nan
    assert loaded(Given(y)).missing_targets == 2 * loaded(Given()).num_train
    y = Y.copy()
    train, _ = Given().split_rows(Given().table())
    y[:, 0] = np.nan
    with pytest.raises(DataError, match="the target 'f' has no value in training rows"):
        loaded(Given(y))
    y[train[4], 0] = 100.0
    data = loaded(Given(y))
    change = Y[train][:, 1:] * X[train].std(0)[[0, 2]]
    np.testing.assert_allclose(data.scaler.target_scale[0], np.sqrt((change**2).mean()))
    np.testing.assert_allclose(data.scaler.target_mean[0], 100.0)


def test_constant_values_without_slopes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    y = np.zeros((40, 3))
    data = loaded(Given(y))
    assert "the target 'f'" in caplog.text
    np.testing.assert_allclose(data.scaler.target_scale[0], 1.0)


REFUSED = {
    "one target": (Given(Y[:, 0]), None, r"has one target, f, .* target=\[f,slope\]"),
    "another number": (Given(), None, r"after f are df_a, df_c \(2\), .* are a, b, c \(3\)"),
    "fewer names": (Given(), ["a"], r"\(2\), and the inputs of with_respect_to= are a \(1\)"),
    "no such column": (Given(), ["a", "z"], "no column 'z' among its inputs, which with_resp"),
    "no such number": (Given(), [0, 3], "has 3 inputs and none of number 3"),
    "twice": (Given(), ["c", "c"], "names the input 'c' twice"),
    "a transform": (Given(target_transform="log"), ["a", "c"], "needs a single target"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(name) -> None:
    source, named, words = REFUSED[name]
    with pytest.raises(DataError, match=words) as refusal:
        loaded(source, named)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def mixed(tmp_path):
    """A table with texts, dates and a gap."""
    lines = ["kind,when,u,v,f,slope"]
    for i in range(30):
        gap = "" if i == 7 else i * 0.1
        lines.append(f"{'ab'[i % 2]},2020-01-{i + 1:02d},{i / 7},{gap},{i},{2 * i}")
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join(lines) + "\n")
    return CSVFile(path=str(path), target=["f", "slope"], missing="mean")


def test_columns_of_texts_and_dates_have_no_derivative(mixed) -> None:
    data = loaded(mixed, ["u"])
    assert data.input_names[data.derivatives[0]] == "u"
    assert data.derivatives[0] > 2  # after the inputs of the texts
    for named, words in (
        ("kind", "'kind=a', which holds texts"),
        ("when", r"'when \(.*\)', which holds dates"),
        (1, "'kind=b', which holds texts"),
    ):
        with pytest.raises(DataError, match=words):
            loaded(mixed, [named])
    column = data.input_names.index("v")
    assert loaded(mixed, ["v"]).derivatives == (column,)
    assert "missing" in data.input_names[column + 1]
    with pytest.raises(DataError, match="'v is missing', which marks missing values"):
        loaded(mixed, [column + 1])
