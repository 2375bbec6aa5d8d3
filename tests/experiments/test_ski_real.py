"""Rows of the table on real data: which of them are measured again."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("row", "complete"),
    [
        ({"stopped": "relative change of evidence", "steps": 31}, True),
        ({"stopped": "max_steps=40 evaluations reached", "steps": 40}, False),
        ({"stopped": "max_steps=99 evaluations reached", "steps": 99}, True),
        (
            {"stopped": "trainer.max_steps=9 evaluations reached", "steps": 8, "most steps": 9},
            False,
        ),
    ],
)
def test_rows_that_were_cut_short_are_measured_again(script, row, complete):
    assert script("ski/real").complete(row, 90) is complete


def test_notes_follow_the_rows(script):
    module = script("ski/real")
    cut = {"stopped": "trainer.max_steps=40 evaluations reached", "steps": 40, "SMSE": 0.4}
    ended = {"stopped": "converged", "steps": 70, "SMSE": 0.5}
    rows = [
        {"data": "abalone", "method": "exact", "evidence": -10.0, **ended},
        {"data": "abalone", "method": "fitc", "evidence": -4.0, **cut},
        {"data": "abalone", "method": "sgpr", "evidence": -11.0, **ended},
    ]
    assert "1 of 3 methods and sets were cut short at 40 to 40" in module.differences(rows)[0]
    (text,) = module.explained(module.chosen(rows))
    assert "FITC is +6 nats, that of SGPR -1.0 nats" in text
    assert module.explained({}) == []
