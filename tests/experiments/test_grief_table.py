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
