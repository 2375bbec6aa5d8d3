"""Moments from a divergence: golden roots, sharpness, and intervals of events and of y."""

import math

import mpmath
import pytest
import torch
from draws import double

from gpx.diagnostics.event_probability import (
    decide,
    exceedance_interval,
    exceedance_probability,
    probability_interval,
)
from gpx.diagnostics.moment_bounds import (
    MomentBounds,
    credible_intervals,
    moment_bounds_from_kl,
    variance_ratio_interval,
)
from gpx.errors import ConfigError


def test_golden_roots():
    low, up = variance_ratio_interval(double([0.01, 0.1, 1.0, 5.0]))
    golden = [0.8131051152, 0.4932394238, 0.0524690975, 1.67019797e-5]
    assert low.tolist() == pytest.approx(golden, rel=1e-8)
    assert up.tolist() == pytest.approx(
        [1.2135497072, 1.7722498296, 4.5052414958, 13.6108686], rel=1e-8
    )


def test_roots_at_every_scale():
    kl = double([0.0, *(10.0**i for i in range(-14, 4))])
    low, up = variance_ratio_interval(kl)
    assert low[0] == up[0] == 1.0
    assert bool((low[1:] < 1.0).all() & (up[1:] > 1.0).all())
    assert low.tolist() == sorted(low.tolist(), reverse=True)
    for root in (low[:-1], up):  # exp(-2001) is zero
        b = root.log()
        assert torch.allclose(torch.expm1(b) - b, 2.0 * kl[: len(b)], rtol=1e-6, atol=1e-15)


def divergence(mean_q, var_q, mean_p, var_p):
    ratio = var_q / var_p
    return 0.5 * (ratio - 1.0 - ratio.log() + (mean_q - mean_p).square() / var_p)


def test_every_gaussian_within_the_divergence_is_inside_and_the_ends_are_attained():
    draws = torch.Generator().manual_seed(0)
    ratio = (4.0 * torch.randn(200_000, generator=draws, dtype=torch.float64)).exp()
    ratio = torch.cat([ratio, torch.linspace(1e-6, 20.0, 200_000, dtype=torch.float64)])
    for kl in (0.01, 0.1, 1.0, 2.0):
        # q is standard; the variance of p is 1 / ratio and its mean as far as the divergence allows
        slack = 2.0 * kl + 1.0 - ratio + ratio.log()
        variance = 1.0 / ratio[slack >= 0.0]
        reach = (slack[slack >= 0.0] * variance).sqrt()
        found = divergence(double(0.0), double(1.0), reach, variance)
        assert torch.allclose(found, torch.full_like(found, kl), rtol=1e-6)
        bounds = moment_bounds_from_kl(double(kl), double([0.0]), double([1.0]))
        assert float(reach.max()) <= float(bounds.mean_upper) * (1 + 1e-12)
        assert float(reach.max()) == pytest.approx(float(bounds.mean_upper), rel=1e-3)
        assert float(bounds.mean_upper) == pytest.approx(math.sqrt(math.expm1(2 * kl)))
        assert float(variance.max()) <= float(bounds.variance_upper) * (1 + 1e-12)
        assert float(bounds.variance_lower) <= float(variance.min()) * (1 + 1e-12)


def test_a_hopeless_divergence_says_nothing_but_no_nan():
    found = moment_bounds_from_kl(double(1e4), double([1.0, 1.0]), double([0.5, 0.0]))
    assert not any(bool(torch.isnan(end).any()) for end in found)
    assert found.mean_upper[0] == math.inf
    known = moment_bounds_from_kl(double(1e4), double([1.0]), double([0.5]), double([2.0]))
    assert float(known.mean_upper) == pytest.approx(1.0 + math.sqrt(4e4))
    intervals = credible_intervals(found, 0.1)
    assert bool(intervals.empty[0])


def test_probability_interval_contains_every_distribution_within_the_divergence():
    q = double([0.0, 1e-6, 0.1, 0.5, 0.9, 1.0])
    p = torch.linspace(1e-9, 1 - 1e-9, 20_001, dtype=torch.float64)[:, None]
    kl_of = torch.xlogy(q, q / p) + torch.xlogy(1 - q, (1 - q) / (1 - p))
    for kl in (1e-6, 0.01, 0.3, 3.0):
        low, up = probability_interval(q, double(kl))
        inside = (p >= low) & (p <= up)
        assert bool(inside[kl_of <= kl].all())
        # tight: no more than the grid's step wider than what the divergence allows
        allowed = torch.where(kl_of <= kl, p, q)
        assert bool((allowed.amax(0) >= up - 2e-4).all())
        assert bool((allowed.amin(0) <= low + 2e-4).all())
        wide = probability_interval(q, double(kl), pinsker=True)
        assert bool((wide[0] <= low).all() & (up <= wide[1]).all())
        assert wide[0].min() >= 0.0
        assert wide[1].max() <= 1.0
    at_zero = probability_interval(q, double(0.0))
    assert torch.allclose(at_zero[0], q)
    assert torch.allclose(at_zero[1], q)


@pytest.mark.parametrize("kl", [1e-18, 1e-16, 1e-14, 1e-10])
def test_a_probability_interval_is_not_too_narrow_by_rounding(kl):
    """The divergence at either end, with 50 digits, is not below what was allowed."""
    for q in (0.3, 0.7071, 0.999):
        for end in probability_interval(double(q), double(kl)):
            p, other = mpmath.mpf(float(end)), mpmath.mpf(q)
            with mpmath.workdps(50):
                found = other * mpmath.log(other / p)
                found += (1 - other) * mpmath.log((1 - other) / (1 - p))
            # beside this p itself is rounded, by half an epsilon of it
            assert found >= kl * (1 - 1e-4) - 1e-33


def test_probability_over_a_rectangle_of_moments():
    box = MomentBounds(
        double([-1.0, 0.5]), double([2.0, 0.9]), double([0.1, 0.2]), double([1, 0.3])
    )
    noise, threshold = double(0.05), double(0.3)
    low, up = exceedance_interval(box, noise, threshold)
    share = torch.linspace(0, 1, 41, dtype=torch.float64)[:, None]
    mean = box.mean_lower + share * (box.mean_upper - box.mean_lower)
    variance = box.variance_lower + share * (box.variance_upper - box.variance_lower)
    every = exceedance_probability(mean[:, None], variance[None], noise, threshold)
    assert torch.allclose(every.amin((0, 1)), low)
    assert torch.allclose(every.amax((0, 1)), up)


def test_small_probabilities_keep_their_digits():
    found = exceedance_probability(double(-10.0), double(0.5), double(0.5), double(0.0))
    assert float(found) == pytest.approx(7.61985302416e-24, rel=1e-10)


def test_a_decision_is_made_only_where_the_whole_interval_is_on_one_side():
    low, up = double([0.1, 0.5, 0.91, 0.9, 0.2]), double([0.3, 0.95, 0.99, 0.9, 0.9])
    assert decide(low, up, 0.9).tolist() == [-1, 0, 1, 1, 0]


def test_credible_intervals_nest():
    exact = MomentBounds(double([1.0]), double([1.0]), double([0.4]), double([0.4]))
    closed = credible_intervals(exact, 0.1, level=0.9)
    half = 1.6448536269514722 * math.sqrt(0.5)
    assert float(closed.inflated_lower) == pytest.approx(1.0 - half)
    assert float(closed.deflated_upper) == pytest.approx(1.0 + half)
    loose = credible_intervals(exact.widen(double(0.2), double(0.1)), 0.1, level=0.9)
    assert loose.inflated_lower < closed.inflated_lower < loose.deflated_lower
    assert not bool(loose.empty)
    assert bool(credible_intervals(exact.widen(double(3.0), double(0.1)), 0.1).empty)
    with pytest.raises(ConfigError, match="level"):
        credible_intervals(exact, 0.1, level=95)
