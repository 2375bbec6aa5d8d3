"""Checks of arguments: what they accept, and what their messages say."""

import pytest

from gpx.errors import ConfigError
from gpx.tensor_checks import (
    check_jitter,
    check_not_negative,
    check_one_of,
    check_positive,
    check_share,
)


def test_a_known_word_passes_and_another_is_refused_with_the_known_ones():
    check_one_of(("clamp", "error"), outside="clamp", beyond="error")
    with pytest.raises(ConfigError, match=r"^outside=fly: expected one of clamp, error$"):
        check_one_of(("clamp", "error"), beyond="error", outside="fly")


def test_a_misspelt_word_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"expected one of mean, median; did you mean median\?$"):
        check_one_of(("mean", "median"), probability="medan")


@pytest.mark.parametrize("value", [None, ["mean"], 1.5, True])
def test_what_is_no_word_is_refused_without_a_nearest_one(value):
    with pytest.raises(ConfigError, match=r"expected one of mean, median$"):
        check_one_of({"mean": 1, "median": 2}, probability=value)


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan")])
def test_a_number_that_is_not_positive_is_refused_and_none_is_not(number):
    check_positive(tolerance=1e-9, spread=None, penalty=float("inf"))
    with pytest.raises(ConfigError, match=r"^tolerance=.* must be positive$"):
        check_positive(spread=1.0, tolerance=number)


def test_infinity_is_refused_where_a_number_must_be_finite():
    with pytest.raises(ConfigError, match=r"^std=inf must be positive and finite$"):
        check_positive(finite=True, std=float("inf"))


def test_a_jitter_below_one_passes_and_a_mistyped_exponent_is_refused():
    check_jitter(jitter=0.0, factor_jitter=None, other=0.9)
    for jitter in (1e6, 1.0, float("nan"), -1e-6):
        with pytest.raises(ConfigError, match=r"^jitter="):
            check_jitter(jitter=jitter)


@pytest.mark.parametrize("number", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_is_strictly_between_0_and_1(number):
    check_share(level=0.95, least=None)
    with pytest.raises(ConfigError, match=rf"^level={number} must be between 0 and 1$"):
        check_share(least=0.5, level=number)


def test_what_must_not_be_negative_may_be_infinite_unless_it_is_to_be_finite():
    check_not_negative(budget=float("inf"), ftol=0.0)
    with pytest.raises(ConfigError, match=r"^ftol=inf must not be negative or infinite$"):
        check_not_negative(finite=True, gtol=0.0, ftol=float("inf"))
    with pytest.raises(ConfigError, match=r"^ftol=nan must not be negative$"):
        check_not_negative(ftol=float("nan"))
