from __future__ import annotations

import numpy as np
import pytest
import torch

from gpx.data.columns.coding import CodedColumn, Coding
from gpx.data.columns.column import Column
from gpx.data.columns.frame import frame_of
from gpx.errors import ConfigError, DataError

COLUMNS = (Column("size"), Column("colour", "category", ("blue", "green", "red")))
NAN = np.nan


def coding(**options: object) -> Coding:
    return Coding(tuple(map(CodedColumn, COLUMNS)), **options)  # type: ignore[arg-type]


def test_one_input_for_each_text_of_the_training_rows() -> None:
    x = np.array([[1.5, 2.0], [2.5, 0.0], [3.5, 2.0], [4.5, 1.0]])
    fitted, made = coding().fitted(x, np.array([0, 1, 2]), "t.csv")
    assert fitted.input_names == ("size", "colour=blue", "colour=red")
    assert fitted.unscaled == (1, 2)
    assert fitted.names == ("size", "colour")
    assert made[:3].tolist() == [[1.5, 0.0, 1.0], [2.5, 1.0, 0.0], [3.5, 0.0, 1.0]]
    np.testing.assert_array_equal(
        fitted(frame_of([[1.5, "red"], [2.5, "blue"]], fitted.names, "new")), made[:2]
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_unseen_category_is_as_far_from_each_as_these_from_one_another(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    texts = tuple("abcdefg"[:count])
    known = Coding((CodedColumn(Column("c", "category", texts)),))
    made = known(frame_of([[text] for text in (*texts, "z")], ["c"], "new"))
    away = np.linalg.norm(made[:-1] - made[-1], axis=1)
    np.testing.assert_allclose(away, np.sqrt(2.0), rtol=1e-12)
    assert "new, row" in caplog.text
    assert "found 'z', which no training row has (these have 'a'" in caplog.text


def test_an_unseen_category_is_refused_where_that_is_asked() -> None:
    known = Coding((CodedColumn(Column("c", "category", ("a", "b"))),), unseen="refuse")
    with pytest.raises(DataError, match=r"new, row 2, column 1 \('c'\): found 'z', which no .*'b'"):
        known(frame_of([["a"], ["z"]], ["c"], "new"))
    x = np.array([[0.0], [1.0], [1.0]])
    with pytest.raises(DataError, match="'c': 1 row has a category that no training row has"):
        known.fitted(x, np.array([1, 2]), "t.csv")


def test_the_mean_stands_in_and_an_input_says_so() -> None:
    x = np.array([[1.0, 2.0], [NAN, 0.0], [4.0, NAN], [NAN, 2.0]])
    fitted, made = coding(missing="mean").fitted(x, np.array([0, 1, 2]), "t.csv")
    assert fitted.input_names == (
        *("size", "size is missing"),
        *("colour=blue", "colour=red", "colour is missing"),
    )
    assert fitted.unscaled == (1, 2, 3, 4)
    assert made.tolist() == [
        [1.0, 0.0, 0.0, 1.0, 0.0],
        [2.5, 1.0, 1.0, 0.0, 0.0],
        [4.0, 0.0, 0.5, 0.5, 1.0],
        [2.5, 1.0, 0.0, 1.0, 0.0],
    ]
    new = fitted(frame_of([[None, ""], ["", "blue"]], fitted.names, "new"))
    assert new.tolist() == [[2.5, 1.0, 0.5, 0.5, 1.0], [2.5, 1.0, 1.0, 0.0, 0.0]]


def test_a_value_that_training_rows_never_lack_has_no_input_for_that() -> None:
    x = np.array([[1.0, 2.0], [2.0, 0.0], [NAN, 0.0]])
    fitted, made = coding(missing="mean").fitted(x, np.array([0, 1]), "t.csv")
    assert fitted.input_names == ("size", "colour=blue", "colour=red")
    assert made[2].tolist() == [1.5, 1.0, 0.0]


@pytest.mark.parametrize("policy", ["refuse", "drop"])
def test_a_missing_value_is_refused_at_prediction(policy: str) -> None:
    fitted, _ = coding(missing=policy).fitted(np.array([[1.0, 2.0]] * 2), np.arange(2), "t.csv")
    with pytest.raises(
        DataError, match=r"new, row 2, column 1 \('size'\): found .*fill in the value"
    ):
        fitted(frame_of(np.array([[1.0, 2.0], [NAN, 2.0]], dtype=object), fitted.names, "new"))


def test_columns_that_tell_nothing() -> None:
    texts = tuple(f"{i:03}" for i in range(30))
    names = Coding((CodedColumn(Column("who", "category", texts)),), max_categories=20)
    codes = np.arange(30.0)[:, None]
    with pytest.raises(DataError, match=r"t.csv: column 'who' has 30 different .*id=who"):
        names.fitted(codes, np.arange(30), "t.csv")
    with pytest.raises(DataError, match="has 30 different texts in 30 training rows"):
        Coding(names.columns).fitted(codes, np.arange(30), "t.csv")
    many = np.tile(codes, (2, 1))
    assert len(Coding(names.columns).fitted(many, np.arange(60), "t.csv")[0].input_names) == 30
    with pytest.raises(DataError, match="column 'size' has no value in training rows"):
        coding(missing="mean").fitted(np.array([[NAN, 1.0], [1.0, 1.0]]), np.array([0]), "t.csv")


def test_plain_data_and_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    columns = (*COLUMNS, Column("when", "date", form="%d.%m.%Y"))
    whole = Coding(tuple(map(CodedColumn, columns)), "mean", "refuse", "name")
    x = np.array([[1.0, 2.0, 5.0], [NAN, 0.0, 7.0]])
    fitted, _ = whole.fitted(x, np.arange(2), "t.csv")
    torch.save(fitted.state(), tmp_path / "state.pt")
    again = Coding.from_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again == fitted
    assert again.input_names[-1] == "when (days since 1970-01-01)"
    frame = frame_of([["2", "red", "2.1.1970"]], again.names, "new")
    assert again(frame).tolist() == [[2.0, 0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"kind": "code"},
        {"texts": [1, 2]},
        {"texts": []},
        {"fill": [0.5]},
        {"fill": [0.5, NAN]},
        {"form": 3},
    ],
)
def test_state_that_describes_no_column_is_refused(change: dict) -> None:
    state = coding().fitted(np.array([[1.0, 2.0], [2.0, 0.0]]), np.arange(2), "t.csv")[0].state()
    Coding.from_state(state)
    state["columns"][1].update(change)
    with pytest.raises((ValueError, TypeError)):
        Coding.from_state(state)


def test_policies_that_do_not_exist() -> None:
    with pytest.raises(
        ConfigError, match="missing=median: expected one of auto, refuse, drop, mean"
    ):
        coding(missing="median")
    with pytest.raises(ConfigError, match="unseen=zero: expected one of apart, refuse"):
        coding(unseen="zero")
