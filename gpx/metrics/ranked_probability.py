"""The continuous ranked probability score of predictive distributions."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Distribution,
    Gamma,
    Laplace,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)

from gpx.likelihoods.quantiles import (
    RowsReplaced,
    cdf,
    is_count,
    is_positive,
    of_components,
    select_rows,
)

QUADRATURE_NODES = 64
"""Nodes of the Gauss-Legendre rule on each side of the target."""

LOG_SLOPE = 30.0
"""Logarithm of more than the largest slope of that rule."""

TAIL = 1e-10
"""Sums over counts end where the probability of larger counts is below this."""

NUM_SINGLE_COUNTS = 64
"""Counts below this are summed one by one; larger ones in growing steps."""

MAX_DOUBLINGS = 10
"""Number of times that the step between counts doubles; sums end at 64 * 4^10."""

CHECK_INTERVAL = 16
"""Number of counts after which rows that have reached their tail are dropped."""

GEOMETRIC_FROM = 4096
"""Counts of negative binomial distributions from which steps are a 256th of an octave, or one
relative standard deviation in octaves if that is less. It does not fall with the mean as that of
Poisson distributions does, so that coarse steps suffice."""


def crps(law: Distribution, y: Tensor) -> Tensor:
    """Integral of (P(Y <= t) - [t >= y])^2 over t for each target, in the unit of y.

    It equals E|Y - y| - E|Y - Y'| / 2. Smaller is better; for a point prediction it is the absolute
    error. It is a proper score.

    Closed forms for normal, Laplace, Student's t, Poisson, gamma and beta distributions and
    mixtures of normals. Other counts are exact to a relative 1e-6 (negative binomial: 1e-4 beyond
    4,096, and 1e-3 beyond 6 * 10^7). All others use quadrature of the distribution function, to a
    relative 1e-3 for transformed normals, other laws of positive numbers (variances of log y up to
    ten) and mixtures of gamma or beta distributions whose components overlap, of which only
    E|Y - Y'| is a quadrature, and 1e-2 for mixtures of components a tenth as wide as the whole.
    Components narrower than that, and apart, may lose a tenth.

    Args:
        law: distribution of y, batch shape (n,) or (n, p).
        y (n,) or (n, p): targets.

    Returns:
        one score per target, of the shape of y, float64.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.

    Cost per target: one closed form; m^2 of them for mixtures of m components; for mixtures of
    counts m distribution functions per count; otherwise 128 distribution functions.

    Sources: Gneiting and Raftery 2007, equation 21; Grimit et al. 2006 (normal mixtures); Jordan,
    Krueger and Lerch 2019 (closed forms).
    """
    y = y.double()
    if isinstance(law, RowsReplaced):
        return law.joined(crps(law.base, y), crps(law.other, y[law.rows]))
    try:
        return _distance(law, y) - _spread(law)
    except NotImplementedError:
        return _quadrature(law, y)


def _distance(law: Distribution, y: Tensor) -> Tensor:
    """E|Y - y|; raises NotImplementedError if there is no closed form."""
    if isinstance(law, MixtureSameFamily):
        share = law.mixture_distribution.probs.double()
        return (share * _distance(law.component_distribution, y.unsqueeze(-1))).sum(-1)
    if isinstance(law, Normal):
        return _normal_distance(y - law.loc, law.scale.double())
    if isinstance(law, Laplace):
        size, scale = (y - law.loc).abs(), law.scale.double()
        return size + scale * torch.exp(-size / scale)
    if isinstance(law, StudentT):
        df, scale = law.df.double(), law.scale.double()
        z = (y - law.loc) / scale
        return scale * _student_distance(df, z)
    if isinstance(law, Poisson):
        rate = law.rate.double()
        double = Poisson(rate, validate_args=False)
        return 2.0 * (y * cdf(double, y) - rate * cdf(double, y - 1.0)) + rate - y
    if isinstance(law, NegativeBinomial):
        # k p(k) = mean * p'(k - 1), where p' has total_count + 1
        count, logits, mean = law.total_count.double(), law.logits.double(), law.mean.double()
        one, more = (NegativeBinomial(c, logits=logits) for c in (count, count + 1.0))
        return 2.0 * (y * cdf(one, y) - mean * cdf(more, y - 1.0)) + mean - y
    if isinstance(law, (Gamma, Beta)):
        # y p(y) = mean * p'(y), where p' has one more in its first parameter
        mean = law.mean.double()
        return 2.0 * (y * cdf(law, y).double() - mean * cdf(_larger(law), y).double()) + mean - y
    raise NotImplementedError


def _larger(law: Gamma | Beta) -> Distribution:
    """The law whose density is proportional to y p(y)."""
    if isinstance(law, Gamma):
        return Gamma(law.concentration.double() + 1.0, law.rate.double(), validate_args=False)
    first, second = law.concentration1.double(), law.concentration0.double()
    return Beta(first + 1.0, second, validate_args=False)


def _spread(law: Distribution) -> Tensor:
    """E|Y - Y'| / 2, float64; raises NotImplementedError if only quadrature can give it."""
    if isinstance(law, Normal):
        return law.scale.double() / math.sqrt(math.pi)
    if isinstance(law, Laplace):
        return 0.75 * law.scale.double()
    if isinstance(law, StudentT):
        df = law.df.double()
        logarithm = _log_beta(0.5, df - 0.5) - 2.0 * _log_beta(0.5, 0.5 * df)
        return law.scale.double() * 2.0 * df.sqrt() / (df - 1.0) * logarithm.exp()
    if isinstance(law, Poisson):
        rate = law.rate.double()
        return rate * (torch.special.i0e(2.0 * rate) + torch.special.i1e(2.0 * rate))
    if is_count(law):
        return _count_spread(law)
    if isinstance(law, Gamma):
        return (-_log_beta(0.5, law.concentration.double())).exp() / law.rate.double()
    if isinstance(law, Beta):
        a, b = law.concentration1.double(), law.concentration0.double()
        both = _log_beta(a + b, a + b) - _log_beta(a, a) - _log_beta(b, b)
        return 2.0 / (a + b) * both.exp()
    if not isinstance(law, MixtureSameFamily):
        raise NotImplementedError
    if isinstance(law.component_distribution, (Gamma, Beta)):
        return _spread_by_quadrature(law)
    share = law.mixture_distribution.probs.double()
    parts: Any = law.component_distribution
    if not isinstance(parts, Normal):
        raise NotImplementedError
    place, variance = parts.loc.double(), parts.variance.double()
    total = torch.zeros_like(place[..., 0])
    for one in range(place.shape[-1]):
        deviation = (variance + variance[..., one, None]).sqrt()
        distance = _normal_distance(place - place[..., one, None], deviation)
        total += share[..., one] * (share * distance).sum(-1)
    return 0.5 * total


def _normal_distance(difference: Tensor, deviation: Tensor) -> Tensor:
    """E|X| of a normal X with this mean and standard deviation, float64."""
    z = difference.double() / deviation
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return deviation * (z * torch.erf(z / math.sqrt(2.0)) + 2.0 * density)


def _student_distance(df: Tensor, z: Tensor) -> Tensor:
    """E|T - z| of a standard Student's t variable T with more than one degree of freedom."""
    standard = StudentT(df, validate_args=False)
    tails = 2.0 * standard.log_prob(z).exp() * (df + z.square()) / (df - 1.0)
    return z * (2.0 * cdf(standard, z) - 1.0) + tails


def _log_beta(a: float | Tensor, b: Tensor) -> Tensor:
    first = math.lgamma(a) if isinstance(a, float) else a.lgamma()
    return first + b.lgamma() - (a + b).lgamma()


def _spread_by_quadrature(law: MixtureSameFamily) -> Tensor:
    """The integral of P(Y <= t) P(Y > t), for a law of numbers above 0, or between 0 and 1.

    In log t, or log(t / (1 - t)), on both sides of that of the mean, in the unit of the deviation
    of the normal law there whose t has these moments, nearly.
    """
    at, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
    mean, deviation = law.mean.double(), law.stddev.double()
    share = isinstance(law.component_distribution, Beta)
    rest = 1.0 - mean if share else torch.ones_like(mean)
    centre = mean.log() - rest.log()
    width = (deviation / (mean * rest)).square().log1p().sqrt()
    found, largest = torch.zeros_like(mean), math.log(torch.finfo(mean.dtype).max) - LOG_SLOPE
    for u, weight in zip((0.5 * (at + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True):
        offset, slope = width * (u / (1.0 - u)), width / (1.0 - u) ** 2
        for end in (centre - offset, centre + offset):
            place = end.sigmoid() if share else end.clamp_max(largest).exp()
            step = slope * place * (1.0 - place if share else 1.0)
            below = cdf(law, place.to(law.mean.dtype)).double()
            found += weight * step * below * _above(law, below)
    return found


def _above(law: Distribution, below: Tensor) -> Tensor:
    """P(Y > t) given P(Y <= t); zero where it is no more than rounding, as of shares that sum to
    one only nearly, which steps of 1e290 at the end of a quadrature would raise to a result."""
    above = 1.0 - below
    return above.masked_fill(above <= 16.0 * _rounding(law), 0.0)


def _count_spread(law: Distribution) -> Tensor:
    """The sum of P(Y <= k) P(Y > k) over counts k, at first over every count, then in steps.

    Steps double at 64, 256, 1024, ..., so that they are at most a quarter of the standard deviation
    of a Poisson distribution: a trapezoidal rule with the first Euler-Maclaurin correction at each
    doubling. For the first counts probabilities are accumulated, which is much cheaper than
    distribution functions.
    """
    law = of_components(law)
    parts = law.component_distribution if isinstance(law, MixtureSameFamily) else law
    octave = None
    if isinstance(parts, NegativeBinomial):
        large = law.mean > 0.5 * GEOMETRIC_FROM
        octave = min([1.0 / 256.0, *(law.stddev / law.mean)[large].tolist()])
    counts, weights = _count_rule(octave)
    total = torch.zeros_like(law.mean, dtype=torch.float64)
    # the weights of a mixture sum to one only up to rounding, so the tail cannot be much smaller
    tail = max(TAIL, 16.0 * _rounding(law))
    rows, below = torch.arange(len(total), device=total.device), torch.zeros_like(total)
    for place, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        at = total.new_full((len(rows),), count)
        single = count < NUM_SINGLE_COUNTS
        below = below + law.log_prob(at).double().exp() if single else cdf(law, at)
        total[rows] += weight * below * (1.0 - below)
        if place % CHECK_INTERVAL == CHECK_INTERVAL - 1:
            left = (below < 1.0 - tail).nonzero().squeeze(1)
            if not len(left):
                break
            law, rows, below = select_rows(law, left), rows[left], below[left]
    return total


def _rounding(law: Distribution) -> float:
    """The largest rounding error of means and of the shares of mixtures."""
    largest = torch.finfo(law.mean.dtype).eps
    while isinstance(law, MixtureSameFamily):
        largest = max(largest, torch.finfo(law.mixture_distribution.probs.dtype).eps)
        law = law.component_distribution
    return largest


def _count_rule(octave: float | None) -> tuple[list[float], list[float]]:
    """Counts and weights of a quadrature rule for sums of smooth functions over all counts.

    Args:
        octave: from ``GEOMETRIC_FROM`` on, steps are this many octaves; None: steps grow with the
            roots of the counts.
    """
    ends = [NUM_SINGLE_COUNTS * 4**n for n in range(MAX_DOUBLINGS + 1)]
    last, ends = ends[-1], [end for end in ends if octave is None or end <= GEOMETRIC_FROM]
    pieces = [np.arange(ends[0])]
    pieces += [np.arange(a, b, 2 << n) for n, (a, b) in enumerate(pairwise(ends))]
    if octave is not None:
        octaves = np.arange(0.0, np.log2(last / GEOMETRIC_FROM), octave)
        pieces.append(np.floor(GEOMETRIC_FROM * 2.0**octaves))
    counts = np.concatenate(pieces)
    gaps = np.diff(counts, append=2.0 * counts[-1] - counts[-2])
    weights = 0.5 * (gaps + np.concatenate([[1], gaps[:-1]]))
    for n, end in enumerate(ends[:-1]):
        at, step = int(np.searchsorted(counts, end)), 2 << n
        # (h^2 - (h / 2)^2) / 12 times the derivative, as a central difference over 2 h
        correction = 0.75 * step**2 / 12.0 / (2.0 * step)
        weights[at + 1] += correction
        weights[at - 2] -= correction
    return counts.astype(float).tolist(), weights.tolist()


def _quadrature(law: Distribution, y: Tensor) -> Tensor:
    """Gauss-Legendre quadrature in u on both sides of y, t = y +- c u / (1 - u).

    c is the standard deviation plus the distance of y from the mean. For laws of all positive
    numbers the same holds of log t, as their tails may reach over orders of magnitude.
    """
    at, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
    mean, deviation, dtype = law.mean.double(), law.stddev.double(), law.mean.dtype
    positive = is_positive(law) & bool((y > 0.0).all())
    place, largest = y, math.log(torch.finfo(dtype).max) - LOG_SLOPE
    if positive:
        spread = (deviation / mean).square().log1p()
        mean, deviation, place = mean.log() - 0.5 * spread, spread.sqrt(), y.log()
    width = deviation + (place - mean).abs()
    found = torch.zeros_like(y)
    for u, weight in zip((0.5 * (at + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True):
        offset, slope = width * (u / (1.0 - u)), width / (1.0 - u) ** 2
        low, high = place - offset, place + offset
        low_slope = high_slope = slope
        if positive:
            low, high = low.exp(), high.clamp_max(largest).exp()
            low_slope, high_slope = slope * low, slope * high
        left = cdf(law, low.to(dtype)).double()
        right = _above(law, cdf(law, high.to(dtype)).double())
        found += weight * (low_slope * left.square() + high_slope * right.square())
    return found
