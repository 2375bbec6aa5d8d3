"""The table of type-I inference: test rows far from the training rows, and chains."""

from __future__ import annotations

import torch


def fold(split, rmse, near, far, beyond=0, **other):
    return {
        "data": "kegg",
        "start": "fitted",
        "inference": "type1_mala",
        "structure": "diagonal",
        "split": split,
        "rmse": rmse,
        "rmse_near": near,
        "far": far,
        "beyond": beyond,
        "mnlp": -0.7,
    } | other


def test_rows_outside_the_box_in_any_input(script):
    x = torch.tensor([[0.5, 0.5], [0.5, 1.1], [-0.1, 0.5], [1.0, 0.0]])
    outside = script("reweighted/uci").outside_of(x, torch.zeros(2), torch.ones(2))
    assert outside.tolist() == [False, True, True, False]


def test_the_effect_of_far_rows_and_poor_folds_are_computed_from_the_folds(script, monkeypatch):
    uci = script("reweighted/uci")
    monkeypatch.setitem(uci.PUBLISHED, "kegg", (100, 2, 0.12, 0.0))
    rows = [
        fold(0, 0.3, 0.116, 2, 1),
        fold(1, 0.12, 0.12, 0),
        fold(3, 0.4, 0.4, 0, mnlp=0.5),
        fold(0, 9.0, 0.1, 2, 2, start="exact"),  # not a start of the note
        {key: v for key, v in fold(2, 0.5, 0.5, 0).items() if key not in ("far", "rmse_near")},
    ]
    assert uci.why_outside(rows, "kegg") == (
        "Start fitted, RMSE with and without the test rows outside the range of the training rows "
        "by more than its tenth: fold 0, 2 rows, 1 beyond the grid: 0.300 and 0.116; mean "
        "over 3 folds 0.273 and 0.212. Outside without these rows, too: fold 3 (0.400, MNLP 0.50); "
        "mean MNLP of the other folds -0.70."
    )
    assert uci.why_outside([], "kegg") == ""


def test_chains_that_accept_too_much_or_too_little_are_not_settled(script):
    settled = script("reweighted/uci").settled
    assert [settled({"acceptance": a}) for a in (None, 0.4, 0.6, 1.0, 0.1)] == [
        True,
        True,
        True,
        False,
        False,
    ]
