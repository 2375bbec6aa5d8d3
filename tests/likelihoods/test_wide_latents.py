"""Expectations of the likelihoods of one latent function, which may be wider than the noise."""

import math

import pytest
import torch

from gpx.likelihoods import (
    Bernoulli,
    Beta,
    Gamma,
    GaussHermite,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)
from gpx.likelihoods.wide_latent import LogSquare, expectation

LINE = torch.linspace(-10.0, 10.0, 40_001, dtype=torch.float64)[:, None]
MASS = (-0.5 * LINE.square()).softmax(0)
MEANS = torch.tensor([-9.0, -2.0, -0.3, 0.0, 1.0, 5.0], dtype=torch.float64)
DEVIATIONS = [0.05, 0.4, 1.0, 2.5, 6.0, 20.0]


def ordinal(link, *gaps):
    made = Ordinal(len(gaps) + 2, link).double()
    made.gaps = torch.tensor(gaps, dtype=torch.float64)
    return made


REAL, SHARES, COUNTS = (0.0, 1.5, -40.0), (0.5, 0.01, 1e-6, 0.999), (0.0, 3.0, 400.0)
CASES = {
    **{f"student {s}, {df}": (StudentT(s, df), REAL) for s in (0.02, 0.3, 5.0) for df in (2.1, 30)},
    **{f"laplace {s}": (Laplace(s), REAL) for s in (0.02, 0.3, 5.0)},
    "gaussian": (Gaussian(0.1), REAL),
    **{f"bernoulli {link}": (Bernoulli(link), (-1.0, 1.0)) for link in ("logit", "probit")},
    **{
        f"ordinal {link}, {gaps}": (ordinal(link, *gaps), (0.0, 1.0, 2.0, 3.0))
        for link in ("logit", "probit")
        for gaps in ((0.5, 1.0), (12.0, 0.01))
    },
    **{
        f"beta {link}, {precision}": (Beta(precision, link), SHARES)
        for link in ("logit", "probit")
        for precision in (0.2, 8.0, 300.0, 1e5)
    },
    **{f"negative binomial {d}": (NegativeBinomial(d), COUNTS) for d in (1e-3, 0.5, 20.0)},
    "gamma": (Gamma(3.0), (0.1, 2.0, 400.0)),
    "poisson": (Poisson(), COUNTS),
}


@pytest.mark.parametrize("name", CASES)
def test_expectations_are_the_integrals_for_any_width(name):
    """To 1e-5 of the deviation of log p, plus one: Gauss-Hermite sums of Student's t were 0.4 nats
    off, and those of a precise beta law thousands."""
    likelihood, targets = CASES[name]
    likelihood = likelihood.double()
    # of f far in the tails of the normal density where log p grows like exp(f)
    deviations = [d for d in DEVIATIONS if d < 2.0 or name not in ("gamma", "poisson")]
    with torch.no_grad():
        for target in targets:
            y = torch.full_like(MEANS, target)
            for deviation in deviations:
                logs = likelihood.log_prob(y, MEANS + deviation * LINE)
                dense = (MASS * logs).sum(0)
                scale = 1.0 + (MASS * (logs - dense).square()).sum(0).sqrt()
                variance = torch.full_like(MEANS, deviation**2)
                found = likelihood.expected_log_prob(y, MEANS, variance)
                assert float(((found - dense).abs() / scale).max()) < 1e-5, (target, deviation)


@pytest.mark.parametrize("scale", [2e-6, 1e-4])
def test_students_noise_far_below_the_width_of_f_has_its_limit(scale):
    """E log(f^2) of f ~ N(0, v) is log(v / 2) - gamma."""
    likelihood = StudentT(scale, 5.0).double()
    variance = torch.tensor([0.1, 1.0, 100.0]).double()
    y = torch.tensor([0.3, -1.0, 2.0]).double()
    with torch.no_grad():
        found = likelihood.expected_log_prob(y, y, variance)
        unit = scale**2 * 5.0
        constant = math.lgamma(3.0) - math.lgamma(2.5) - 0.5 * math.log(math.pi * unit)
        square = (variance / 2.0).log() - float(torch.tensor(1.0).digamma().neg())
        expected = constant - 3.0 * (square - math.log(unit))
    torch.testing.assert_close(found, expected, rtol=0, atol=80.0 * scale + 1e-4)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("mean", [0.0, 1e-4, 3.0, 250.0])
def test_the_logarithm_of_squares_keeps_its_digits(far, mean):
    """Of narrow z it is log(1 + mean^2), of small ones E z^2."""
    rule = LogSquare(far)
    at, none = torch.tensor([mean], dtype=torch.float64), torch.zeros(1).double()
    exact = math.log1p(mean**2)
    assert float(rule.of(at, none)) == pytest.approx(exact, rel=2e-5, abs=1e-12)
    spread = torch.tensor([1e-12], dtype=torch.float64)
    assert float(rule.of(none, spread)) == pytest.approx(1e-12, rel=2e-5)


def test_squares_beyond_the_range_are_scaled():
    """1e-16 units of noise: the logarithm of the square of the mean is all there is."""
    rule = LogSquare(far=True)
    mean = torch.tensor([1e12, -3e15, 1e18], dtype=torch.float64)
    expected = 2.0 * mean.abs().log()
    found = rule.of(mean, torch.ones(3).double())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    single = rule.of(mean.float(), torch.ones(3))
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-4)


WIDE = {
    "student": (lambda: StudentT(0.125, 4.0), 0.5),
    "beta": (lambda: Beta(16.0), 0.25),
    "beta probit": (lambda: Beta(16.0, "probit"), 0.75),
    "bernoulli": (lambda: Bernoulli("probit"), 1.0),
    "ordinal": (lambda: Ordinal(4, "probit"), 1.0),
}
SEVERAL = torch.tensor([-1.0, 0.5, 2.0, 0.25])
VARIANCES = torch.tensor([0.0625, 4.0, 16.0, 1.5])


@pytest.mark.parametrize("name", WIDE)
def test_gradients_are_those_of_differences(name):
    """By mean, variance and parameters, with narrow and wide rows side by side."""
    make, target = WIDE[name]
    likelihood = make().double()
    y = torch.full((4,), target).double()

    def value(mean, log_variance, *_):
        return likelihood.expected_log_prob(y, mean, log_variance.exp())

    inputs = [SEVERAL.double().requires_grad_(), VARIANCES.double().log().requires_grad_()]
    assert torch.autograd.gradcheck(value, [*inputs, *likelihood.parameters()], atol=2e-5)


@pytest.mark.parametrize("name", WIDE)
def test_rows_do_not_depend_on_those_beside_them(name):
    make, target = WIDE[name]
    likelihood = make().double()
    y = torch.full((4,), target).double()
    with torch.no_grad():
        both = likelihood.expected_log_prob(y, SEVERAL.double(), VARIANCES.double())
        for row in range(4):
            rows = slice(row, row + 1)
            own = (part.double()[rows] for part in (SEVERAL, VARIANCES))
            torch.testing.assert_close(likelihood.expected_log_prob(y[rows], *own), both[rows])


@pytest.mark.parametrize("name", WIDE)
def test_single_precision_gives_the_same(name):
    make, target = WIDE[name]
    single, exact = make().float(), make().double()
    y = torch.full((4,), target)
    with torch.no_grad():
        for key, parameter in single.named_parameters():
            exact.get_parameter(key).copy_(parameter)
        found = single.expected_log_prob(y, SEVERAL, VARIANCES)
        expected = exact.expected_log_prob(y.double(), SEVERAL.double(), VARIANCES.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_bend_far_from_the_mean_is_found():
    """|f| smoothed over a thousandth of the deviation of f, from the middle to four deviations."""
    mean = torch.tensor([0.0, 1e3, 4e3], dtype=torch.float64)
    variance = torch.full_like(mean, 1e6)
    place = torch.zeros_like(mean), torch.ones_like(mean)

    def bend(f):
        return (1.0 + f.square()).sqrt()

    found = expectation(GaussHermite(20), bend, mean, variance, 1.0, lambda: place)
    line = torch.linspace(-10.0, 10.0, 400_001, dtype=torch.float64)[:, None]
    mass = (-0.5 * line.square()).softmax(0)
    expected = (mass * bend(mean + 1e3 * line)).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
