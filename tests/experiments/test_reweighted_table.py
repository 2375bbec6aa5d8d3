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
    } | other


def test_rows_outside_the_box_in_any_input(script):
    x = torch.tensor([[0.5, 0.5], [0.5, 1.1], [-0.1, 0.5], [1.0, 0.0]])
    outside = script("reweighted/uci").outside_of(x, torch.zeros(2), torch.ones(2))
    assert outside.tolist() == [False, True, True, False]


def test_the_effect_of_far_rows_is_computed_from_the_folds(script):
    effect = script("reweighted/uci").effect_of_far_rows
    rows = [
        fold(0, 0.3, 0.116, 2, 2),
        fold(1, 0.12, 0.12, 0),
        fold(0, 9.0, 0.1, 2, 2, start="exact"),  # not a start of the note
        {key: v for key, v in fold(2, 0.5, 0.5, 0).items() if key not in ("far", "rmse_near")},
    ]
    assert effect(rows, "kegg") == (
        "fitted: 2 rows in fold 0, 2 of them beyond the grid, RMSE of the fold 0.300 with and "
        "0.116 without them, mean without them 0.118 (2 folds)"
    )
    assert effect(rows[1:], "kegg") == ""


def test_chains_that_accept_too_much_or_too_little_are_not_settled(script):
    settled = script("reweighted/uci").settled
    assert [settled({"acceptance": a}) for a in (None, 0.4, 0.6, 1.0, 0.1)] == [
        True,
        True,
        True,
        False,
        False,
    ]
