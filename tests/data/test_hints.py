import numpy as np
import pytest

from gpx.data.hints import row_counter, skewed_target


def table(first):
    other = np.random.default_rng(0).normal(size=len(first))
    return np.column_stack([other, first])


@pytest.mark.parametrize("start", [0, 1])
def test_a_column_that_counts_the_rows_is_named(start):
    said = row_counter(table(np.arange(40.0) + start), ["area", "no"])
    assert said.startswith("the input 'no' numbers the rows")
    assert "id=no" in said


@pytest.mark.parametrize(
    "column", [np.arange(40.0) + 1990, np.arange(40.0)[::-1], np.arange(40.0) // 2, np.arange(29.0)]
)
def test_years_repeats_other_orders_and_few_rows_are_quantities(column):
    assert row_counter(table(column), ["area", "no"]) == ""


def test_the_only_input_is_no_counter():
    assert row_counter(np.arange(40.0)[:, None], ["t"]) == ""


def test_a_skewed_target_is_told_with_both_skewnesses():
    y = np.exp(np.random.default_rng(0).normal(size=2000))
    centred = y - y.mean()
    expected = np.mean(centred**3) / np.mean(centred**2) ** 1.5
    said = skewed_target(y, "price")
    assert f"skewness {expected:.1f}, its logarithm" in said
    assert "target_transform=log" in said


def test_targets_that_are_symmetric_constant_or_not_positive_get_no_hint():
    rng = np.random.default_rng(0)
    assert skewed_target(10.0 + rng.normal(size=500), "y") == ""
    assert skewed_target(np.exp(rng.normal(size=500)) - 0.5, "y") == ""
    assert skewed_target(np.full(500, 3.0), "y") == ""


def test_units_of_any_size_are_no_trouble():
    y = np.random.default_rng(0).lognormal(size=500)
    with np.errstate(all="raise"):
        assert skewed_target(y * 1e150, "y").startswith("the target 'y' is positive and skewed")
        assert skewed_target(1e15 + np.arange(60.0) % 7.0, "y") == ""
