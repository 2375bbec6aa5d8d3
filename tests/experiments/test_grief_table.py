"""The UCI table of GRIEF: what identifies a fold, and limits of evaluations."""

from __future__ import annotations


def test_folds_of_another_start_do_not_replace_those_of_training_rows(script):
    uci = script("grief/uci")
    old = {"data": "servo", "split": 3}
    assert uci.key_of(old) == ("servo", 3, "equispaced", "training")
    assert uci.key_of(old | {"grid": "equispaced", "kernel": "training"}) == uci.key_of(old)
    assert uci.key_of(old | {"kernel": "whole_set"}) != uci.key_of(old)


def test_limits_of_evaluations_are_said_with_the_folds_that_ended_there(script):
    folds = [{"evaluations": e, "max_evaluations": m} for e, m in ((20, 20), (88, 200), (200, 200))]
    assert script("grief/uci").limits(folds) == "20, 200 (2)"


def test_folds_that_put_a_set_outside_are_named_with_how_they_ended(script):
    errors = ((0, 1.0, 20, 200), (1, 3.0, 200, 200), (2, 2.5, 30, 200), (3, 1.2, 200, 200))
    keys = ("split", "rmse", "evaluations", "max_evaluations")
    folds = [dict(zip(keys, fold, strict=True)) for fold in errors]
    (said,) = script("grief/uci").far_folds("stock", folds, 2.0)
    assert said == (
        "Outside on stock: folds 1 (3 after 200 evaluations, its limit), 2 (2.5 after 30 "
        "evaluations); the other 2 have a mean of 1.1."
    )
    assert script("grief/uci").far_folds("stock", folds[:1], 0.5) == []
