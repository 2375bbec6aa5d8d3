from __future__ import annotations

import numpy as np
import pytest

from gpx.data.columns.coding import CodedColumn, Coding
from gpx.data.columns.column import Column
from gpx.data.columns.gaps import FEW_GAPS, STAND_INS, stand_ins
from gpx.data.loading import load
from gpx.data.source import DataSource
from gpx.data.table import Table

NAN = np.nan


def test_stand_ins_are_training_values_of_equal_probability() -> None:
    values = np.random.default_rng(0).gamma(1.0, size=STAND_INS * 5)
    parts = np.sort(values).reshape(STAND_INS, 5)
    np.testing.assert_array_equal(stand_ins(values), parts[:, 2])


def test_those_of_codes_have_their_shares() -> None:
    codes = np.repeat([0.0, 1.0, 2.0], [4, 2, 2])
    counts = np.unique(stand_ins(codes), return_counts=True)[1]
    assert counts.tolist() == [STAND_INS // 2, STAND_INS // 4, STAND_INS // 4]


@pytest.mark.parametrize(("gaps", "there"), [(0, 0), (1, STAND_INS), (FEW_GAPS, 0)])
def test_only_columns_that_few_training_rows_lack_have_them(gaps: int, there: int) -> None:
    x = np.arange(2.0 * FEW_GAPS)[:, None]
    x[:gaps] = NAN
    coding = Coding((CodedColumn(Column("a")),), "mean")
    fitted, _ = coding.fitted(x, np.arange(len(x)), "t.csv")
    assert len(fitted.columns[0].stand_ins) == there
    assert fitted.columns[0].indicator is (gaps > 0)


def state() -> dict:
    columns = (Column("a"), Column("c", "category", ("red", "blue")))
    x = np.array([[1.0, 0.0], [NAN, 1.0], [3.0, NAN]])
    coding = Coding(tuple(map(CodedColumn, columns)), "mean")
    fitted = coding.fitted(x, np.arange(3), "t.csv")[0]
    assert Coding.from_state(fitted.state()) == fitted
    return fitted.state()


def test_what_was_saved_before_there_were_any_has_none() -> None:
    old = state()
    for column in old["columns"]:
        del column["stand_ins"]
    assert all(
        column.indicator and not column.stand_ins for column in Coding.from_state(old).columns
    )


@pytest.mark.parametrize(
    ("column", "change"),
    [
        (0, {"stand_ins": [1.0, NAN]}),
        (0, {"stand_ins": [1.0]}),
        (0, {"indicator": False}),
        (1, {"stand_ins": [2.0] * STAND_INS}),
        (1, {"stand_ins": [-1.0] * STAND_INS}),
        (1, {"stand_ins": [0.5] * STAND_INS}),
    ],
)
def test_state_with_impossible_stand_ins_is_refused(column: int, change: dict) -> None:
    changed = state()
    changed["columns"][column].update(change)
    with pytest.raises(ValueError, match="invalid stand-ins"):
        Coding.from_state(changed)


def test_the_notes_name_the_columns_that_are_averaged_over() -> None:
    x = np.arange(80.0).reshape(40, 2) ** 1.5
    x[3, 1] = NAN
    coding = Coding((CodedColumn(Column("full")), CodedColumn(Column("gappy"))), "mean")
    table = Table("t", x, np.sin(np.arange(40.0)), ("full", "gappy"), "y", coding=coding)
    assert "fewer than 50 training rows lack a value of 'gappy', too few" in noted(table)
    complete = Table("t", np.nan_to_num(x), table.y, table.input_names, "y", coding=coding)
    assert "lack" not in noted(complete)


def noted(table: Table) -> str:
    class Given(DataSource):
        def table(self) -> Table:
            return table

    return load(Given(test_fraction=0), task="regression").notes
