"""The continuous ranked probability score of any predictive law of numbers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Laplace,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)

from gpx.likelihoods.quantiles import cdf, is_count, select_rows

NODES = 64
"""Of the Gauss-Legendre rule on each side of the target."""
TAIL = 1e-10
"""Probability beyond which counts add nothing."""
EVERY = 64
"""Counts from 0 that are all visited."""
MOST_COUNTS = 10
"""Times that the steps between counts double; counts above 64 * 4^10 have no part in a sum."""
CHECK = 16
"""Counts after which rows are left out whose tail is reached."""
WIDE = 4096
"""Counts of negative binomial laws beyond which steps are a 64th of an octave: their deviation
is a share of the mean, and an incomplete beta function of each part is not had in passing."""


def crps(law: Distribution, y: Tensor) -> Tensor:
    """Integral of (P(Y <= t) - [t >= y])^2 over t: one of each target, in the unit of y.

    It is E|Y - y| - E|Y - Y'| / 2. Smaller is better; of a law without spread it is the absolute
    error. Proper: on average over the targets of a law, none scores better than that law.

    In closed form for normal, Laplace, Student's t and Poisson laws and mixtures of normal laws;
    other counts to 1e-6 of the score (beyond 4,096, of negative binomial laws, to 1e-4, and 1e-3
    where they reach beyond 6 * 10^7). Others by quadrature of the distribution function: to 1e-3 of
    the score for transformed normal laws, 1e-2 where the components of a mixture are about a tenth
    as wide as the whole.

    Args:
        law: of y, batch shape (n,) or (n, p).
        y (n,) or (n, p): targets.

    Returns:
        shaped as y, float64.

    Raises:
        NotImplementedError: the law has no cumulative distribution function.

    Cost: a closed form; for mixtures of m laws m^2 of these for each target, for mixtures of counts
    m distribution functions for each count; otherwise 128 distribution functions.

    Sources: Gneiting and Raftery 2007, equation 21; Grimit et al. 2006 (normal mixtures); Jordan,
    Krueger and Lerch 2019 (closed forms).
    """
    y = y.double()
    try:
        return _distance(law, y) - _spread(law)
    except NotImplementedError:
        return _quadrature(law, y)


def _distance(law: Distribution, y: Tensor) -> Tensor:
    """E|Y - y|; raises NotImplementedError where it has no closed form."""
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
        # k p(k) is the mean times the probability of k - 1 with one more failure
        count, logits, mean = law.total_count.double(), law.logits.double(), law.mean.double()
        one, more = (NegativeBinomial(c, logits=logits) for c in (count, count + 1.0))
        return 2.0 * (y * cdf(one, y) - mean * cdf(more, y - 1.0)) + mean - y
    raise NotImplementedError


def _spread(law: Distribution) -> Tensor:
    """E|Y - Y'| / 2, float64; raises NotImplementedError where only quadrature has it."""
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
    if not isinstance(law, MixtureSameFamily):
        raise NotImplementedError
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
    """E|X| of a normal X with this mean and deviation, float64."""
    z = difference.double() / deviation
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return deviation * (z * torch.erf(z / math.sqrt(2.0)) + 2.0 * density)


def _student_distance(df: Tensor, z: Tensor) -> Tensor:
    """E|T - z| of a standard Student's t with more than one degree of freedom."""
    standard = StudentT(df, validate_args=False)
    tails = 2.0 * standard.log_prob(z).exp() * (df + z.square()) / (df - 1.0)
    return z * (2.0 * cdf(standard, z) - 1.0) + tails


def _log_beta(a: float, b: Tensor) -> Tensor:
    return math.lgamma(a) + b.lgamma() - (a + b).lgamma()


def _count_spread(law: Distribution) -> Tensor:
    """The sum of P(Y <= k) P(Y > k) over counts k: every one at first, then in steps.

    As long as every one is visited, probabilities are added up: an incomplete beta function costs
    many of them.

    Steps double at 64, 256, 1024, ..., so that they are a quarter of the deviation of a Poisson law
    at most: a trapezoidal rule with the first correction of Euler and Maclaurin at each doubling.
    """
    parts = law.component_distribution if isinstance(law, MixtureSameFamily) else law
    counts, weights = _count_rule(in_shares=isinstance(parts, NegativeBinomial))
    total = torch.zeros_like(law.mean, dtype=torch.float64)
    # shares of a mixture sum to one but for rounding, which keeps the tail from being reached
    tail = max(TAIL, 16.0 * torch.finfo(law.mean.dtype).eps)
    rows, below = torch.arange(len(total), device=total.device), torch.zeros_like(total)
    for place, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        here = total.new_full((len(rows),), count)
        below = below + law.log_prob(here).double().exp() if count < EVERY else cdf(law, here)
        total[rows] += weight * below * (1.0 - below)
        if place % CHECK == CHECK - 1:  # rows whose tail is reached need no more
            left = (below < 1.0 - tail).nonzero().squeeze(1)
            if not len(left):
                break
            law, rows, below = select_rows(law, left), rows[left], below[left]
    return total


def _count_rule(*, in_shares: bool) -> tuple[list[float], list[float]]:
    """Counts, and weights whose sum over a smooth function of them is that over all counts.

    Args:
        in_shares: steps grow with the counts from WIDE on, not with their roots.
    """
    ends = [EVERY * 4**n for n in range(MOST_COUNTS + 1)]
    far, ends = ends[-1], [end for end in ends if not in_shares or end <= WIDE]
    pieces = [np.arange(ends[0])]
    pieces += [np.arange(a, b, 2 << n) for n, (a, b) in enumerate(pairwise(ends))]
    if in_shares:
        pieces.append(np.floor(WIDE * 2.0 ** np.arange(0.0, np.log2(far / WIDE), 1.0 / 64.0)))
    counts = np.concatenate(pieces)
    gaps = np.diff(counts, append=2.0 * counts[-1] - counts[-2])
    weights = 0.5 * (gaps + np.concatenate([[1], gaps[:-1]]))
    for n, end in enumerate(ends[:-1]):
        here, step = int(np.searchsorted(counts, end)), 2 << n
        # (h^2 - (h / 2)^2) / 12 of the derivative, a central difference over 2 h
        correction = 0.75 * step**2 / 12.0 / (2.0 * step)
        weights[here + 1] += correction
        weights[here - 2] -= correction
    return counts.astype(float).tolist(), weights.tolist()


def _quadrature(law: Distribution, y: Tensor) -> Tensor:
    """Both sides of y by Gauss-Legendre in u, t = y +- c u / (1 - u), c the reach of the law."""
    at, weights = np.polynomial.legendre.leggauss(NODES)
    kind = law.mean.dtype
    reach = law.stddev.double() + (y - law.mean.double()).abs()
    found = torch.zeros_like(y)
    for u, weight in zip((0.5 * (at + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True):
        away, slope = reach * (u / (1.0 - u)), reach / (1.0 - u) ** 2
        left = cdf(law, (y - away).to(kind)).double()
        right = 1.0 - cdf(law, (y + away).to(kind)).double()
        found += weight * slope * (left.square() + right.square())
    return found
