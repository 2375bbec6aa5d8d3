"""Distribution functions and quantiles of predictive distributions, also where torch has none."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from scipy.special import betainc, betaincc, stdtr
from torch import Tensor
from torch.distributions import (
    Beta,
    Categorical,
    Distribution,
    Gamma,
    Laplace,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    constraints,
)

from gpx.likelihoods.smooth_mixture import ExactMixture
from gpx.linalg import running_sum

COUNT_WINDOW = 256
"""Number of counts whose probabilities are summed at once."""
MAX_COUNT = 1e6
"""Above this the quantile of a count is the bound of Chebyshev's inequality."""
FAR = 1e-18
"""Probability of a tail of the negative binomial distribution that counts as zero."""
NEWTON_STEPS, MAX_STEPS = 12, 140
"""Limits of the search for a quantile: pure Newton steps (about six suffice), and steps in all, of
which every second one then bisects."""


class RowsReplaced(Distribution):
    """A distribution (n,), some rows of which have a distribution of another family.

    Args:
        base: of all rows, batch shape (n,).
        rows (m,): indices of the rows that are replaced.
        other: their distribution, batch shape (m,), with the support of ``base``.
    """

    has_rsample = False
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, base: Distribution, rows: Tensor, other: Distribution) -> None:
        super().__init__(base.batch_shape, validate_args=False)
        self.base, self.rows, self.other = base, rows, other

    def joined(self, of_base: Tensor, of_other: Tensor) -> Tensor:
        """Values (..., n) of ``base``, replaced by those (..., m) of ``other``."""
        return of_base.index_copy(-1, self.rows, of_other)

    @property
    def support(self) -> Any:
        """That of ``base``."""
        return self.base.support

    @property
    def mean(self) -> Tensor:
        """(n,)."""
        return self.joined(self.base.mean, self.other.mean)

    @property
    def variance(self) -> Tensor:
        """(n,)."""
        return self.joined(self.base.variance, self.other.variance)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities or probabilities (..., n)."""
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        return self.joined(self.base.log_prob(value), self.other.log_prob(value[..., self.rows]))

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= value), (..., n)."""
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        return self.joined(cdf(self.base, value), cdf(self.other, value[..., self.rows]))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles of probabilities (n,)."""
        return self.joined(quantile(self.base, value), quantile(self.other, value[self.rows]))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws from the global generator of torch."""
        shape = torch.Size(sample_shape)
        return self.joined(self.base.sample(shape), self.other.sample(shape))


def is_count(law: Distribution) -> bool:
    """Whether the distribution is discrete."""
    return bool(law.support.is_discrete)  # type: ignore[union-attr]


def is_positive(law: Distribution) -> bool:
    """Whether the distribution is of all numbers above 0."""
    return not is_count(law) and _support_ends(law) == (0.0, math.inf)


def cdf(law: Distribution, y: Tensor) -> Tensor:
    """P(Y <= y), shaped as y and the batch of the law.

    Beside torch's own: Student's t, beta and negative binomial (incomplete beta functions of SciPy,
    on the CPU), Poisson (incomplete gamma function, to 1e-9 of itself), and mixtures of any of
    these, or of mixtures.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.
    """
    if isinstance(law, MixtureSameFamily):
        share: Tensor = law.mixture_distribution.probs
        return (share * cdf(law.component_distribution, y.unsqueeze(-1))).sum(-1)
    if isinstance(law, StudentT):
        z = ((y - law.loc) / law.scale).double()
        df = law.df.double().expand(z.shape)
        found = stdtr(df.detach().cpu().numpy(), z.detach().cpu().numpy())
        return torch.as_tensor(found).to(y)
    if isinstance(law, Poisson):
        whole, rate = torch.broadcast_tensors(y.double().floor(), law.rate.double())
        found = torch.special.gammaincc((whole + 1.0).clamp_min(1.0), rate)
        return found.masked_fill(whole < 0.0, 0.0).to(y)
    if isinstance(law, NegativeBinomial):
        whole = y.double().floor()
        found = _negative_binomial(whole, law.total_count.double(), law.logits.double())
        return found.to(y).masked_fill(whole < 0.0, 0.0)
    if isinstance(law, Beta):
        parts = law.concentration1.double(), law.concentration0.double(), y.double().clamp(0.0, 1.0)
        return torch.as_tensor(betainc(*(part.detach().cpu().numpy() for part in parts))).to(y)
    if _has_lower_end(law):  # torch refuses values below it, or continues the formula there
        support: Any = law.support
        below = ~support.check(y) & ~y.isnan()
        end = torch.as_tensor(support.lower_bound).to(y)
        return law.cdf(torch.where(below, end + end.abs() + 1.0, y)).masked_fill(below, 0.0)
    return law.cdf(y)


def _has_lower_end(law: Distribution) -> bool:
    """Whether values are the real numbers above a number, as for Weibull and gamma laws."""
    try:
        support: Any = law.support
    except NotImplementedError:
        return False
    return isinstance(support, (constraints.greater_than, constraints.greater_than_eq))


@torch.no_grad()
def _negative_binomial(y: Tensor, count: Tensor, logits: Tensor) -> Tensor:
    """P(Y <= y) of whole y: by incomplete beta functions, which are slow, where it is not 0 or 1.

    It is one of these to ``FAR`` where Chernoff's bound of the tail says so: for most components of
    a mixture.
    """
    y, count, logits = torch.broadcast_tensors(y.clamp_min(0.0), count, logits)
    mean = count * logits.exp()
    excess = y - mean
    bound = torch.xlogy(y, y / mean) - (y + count) * torch.log1p(excess / (mean + count))
    found = (excess > 0.0).double()
    near = ~(bound > -math.log(FAR))
    parts = y[near] + 1.0, count[near], logits[near].sigmoid()
    found[near] = torch.as_tensor(betaincc(*(part.cpu().numpy() for part in parts))).to(found)
    return found


def cdf_before(law: Distribution, y: Tensor) -> Tensor:
    """P(Y < y), equal to ``cdf`` except for counts."""
    return cdf(law, y.ceil() - 1.0) if is_count(law) else cdf(law, y)


def select_rows(law: Distribution, rows: Tensor | tuple[Tensor, Tensor]) -> Distribution:
    """The distribution of some rows of the batch, given their indices (m,), or an array of them.

    For a batch (n, p): of single targets, given their rows (m,) and outputs (m,).

    Raises:
        NotImplementedError: neither normal, Laplace, Student's t, beta, gamma, Poisson, negative
            binomial, nor a mixture of these, nor one of these in some rows and another in others.
    """
    if isinstance(law, RowsReplaced) and isinstance(rows, Tensor):
        place = torch.full_like(law.mean, -1, dtype=torch.long)
        place[law.rows] = torch.arange(len(law.rows), device=place.device)
        there = (place[rows] >= 0).nonzero()[:, 0]
        base = select_rows(law.base, rows)
        if not len(there):
            return base
        return RowsReplaced(base, there, select_rows(law.other, place[rows[there]]))
    if isinstance(law, MixtureSameFamily):
        share = Categorical(probs=law.mixture_distribution.probs[rows])
        found = MixtureSameFamily(share, select_rows(law.component_distribution, rows))
        if isinstance(law, ExactMixture):
            return law.of_same_likelihood(found, law.latent_mean[rows], law.latent_variance[rows])
        return found
    if isinstance(law, (Normal, Laplace, StudentT, Beta, Gamma, Poisson, NegativeBinomial)):
        names = [name for name in law.arg_constraints if name != "probs"]  # logits are enough
        return type(law)(**{name: getattr(law, name)[rows] for name in names})
    raise NotImplementedError(f"rows of a {type(law).__name__}")


def of_components(law: Distribution) -> Distribution:
    """The law with the density of its components, which is that of its distribution function.

    It is cheaper than the exact one of an ``ExactMixture``.
    """
    if isinstance(law, ExactMixture):
        return law.mixture
    if isinstance(law, MixtureSameFamily):
        parts = of_components(law.component_distribution)
        return MixtureSameFamily(law.mixture_distribution, parts)
    return law


def quantile(law: Distribution, q: float | Tensor) -> Tensor:
    """The quantile of probability q in (0, 1), shaped as the batch of the law.

    For counts the smallest integer k with P(Y <= k) >= q, by summation if there is no distribution
    function. Without an inverse distribution function (mixtures, Student's t) the quantile is
    computed to rounding by Newton steps within brackets.

    Args:
        law: with finite mean and standard deviation.
        q: one number, or one for each row.

    Raises:
        NotImplementedError: not a count, and no cumulative distribution function.

    Cost: about ten distribution functions and densities of most rows; some need more steps.
    """
    mean = law.mean
    wanted = torch.as_tensor(q, dtype=mean.dtype, device=mean.device)
    wanted, mean = torch.broadcast_tensors(wanted, mean)
    if not mean.numel():  # mixtures cannot check the values of no rows
        return mean.clone()
    if is_count(law):
        law = of_components(law)
        try:
            return _whole_number(law, wanted)
        except NotImplementedError:
            return _by_summation(law, wanted)
    try:
        return law.icdf(wanted)
    except NotImplementedError:
        return _solve(of_components(law), wanted)


def central_interval(law: Distribution, level: float) -> tuple[Tensor, Tensor]:
    """Ends of the central interval of probability ``level``, by ``quantile``.

    Distributions without a distribution function get the normal interval of the same mean and
    standard deviation.
    """
    tail = 0.5 * (1.0 - level)
    try:
        return quantile(law, tail), quantile(law, 1.0 - tail)
    except NotImplementedError:
        normal = Normal(law.mean, law.stddev)
        return quantile(normal, tail), quantile(normal, 1.0 - tail)


def _solve(law: Distribution, q: Tensor) -> Tensor:
    """y with P(Y <= y) = q, by Newton steps, or bisection where these leave the bracket.

    The first bracket is from Chebyshev's one-sided inequality, within the support. For laws of all
    positive numbers the search is for log y: of a gamma law of shape 0.05 the lower end of an
    interval is 1e-32 of the mean.
    """
    mean, deviation = law.mean, law.stddev
    info, (lowest, highest) = torch.finfo(mean.dtype), _support_ends(law)
    low = mean - deviation * ((1.0 - q) / q).sqrt()
    high = mean + deviation * (q / (1.0 - q)).sqrt()
    low, high = (end.clamp(lowest, highest) for end in (low, high))
    positive = is_positive(law)
    if positive:
        low, high = (end.clamp_min(info.tiny).log() for end in (low, high))
        spread = (deviation / mean).square().log1p()
        mean, deviation = mean.log() - 0.5 * spread, spread.sqrt()
    at = Normal(mean, deviation).icdf(q)
    at = torch.where((at > low) & (at < high), at, 0.5 * (low + high))
    resolution = 4.0 * info.eps
    found, done = at.clone(), torch.zeros_like(at, dtype=torch.bool)
    rows: Tensor | None = None  # of the law that is left; None: all, of any shape
    for step in range(MAX_STEPS):
        y = at.exp() if positive else at
        excess = cdf(law, y) - q
        low, high = torch.where(excess < 0.0, at, low), torch.where(excess < 0.0, high, at)
        log_slope = law.log_prob(y) + at if positive else law.log_prob(y)
        newton = at - excess / log_slope.exp()
        inside = (newton > low) & (newton < high)
        if step > NEWTON_STEPS and step % 2:
            inside = torch.zeros_like(inside)
        moved = torch.where(inside, newton, 0.5 * (low + high))
        # stop at the rounding level of the distribution function, and stay there
        done |= (moved - at).abs() <= resolution * (at.abs() + deviation)
        done |= excess.abs() <= resolution * q.minimum(1.0 - q)
        at = torch.where(done, at, moved)
        if bool(done.all()):
            break
        # most rows need a few steps and some need many: only these go on
        if at.ndim == 1 and 2 * int(done.sum()) >= len(at):
            left = (~done).nonzero()[:, 0]
            try:
                law = select_rows(law, left)
            except NotImplementedError:
                continue
            found = at if rows is None else found.index_copy(0, rows, at)
            rows = left if rows is None else rows[left]
            at, low, high, q = (part[left] for part in (at, low, high, q))
            deviation, done = deviation[left], done[left]
    found = at if rows is None else found.index_copy(0, rows, at)
    return found.exp() if positive else found


def _support_ends(law: Distribution) -> tuple[float, float]:
    """Ends of the support of a continuous distribution."""
    if isinstance(law, MixtureSameFamily):
        return _support_ends(law.component_distribution)
    if _has_lower_end(law):
        support: Any = law.support
        return float(torch.as_tensor(support.lower_bound).min()), math.inf
    return (0.0, 1.0) if isinstance(law, Beta) else (-math.inf, math.inf)


def _whole_number(law: Distribution, q: Tensor) -> Tensor:
    """Smallest integer k with P(Y <= k) >= q, by bisection up to Chebyshev's one-sided bound."""
    high = (law.mean + law.stddev * (q / (1.0 - q)).sqrt()).ceil()
    low = torch.full_like(high, -1.0)
    while bool((high - low > 1.0).any()):
        middle = (0.5 * (low + high)).floor()
        if bool(((middle == low) & (high - low > 1.0)).any()):
            break  # integers that the dtype cannot represent
        below = cdf(law, middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def _by_summation(law: Distribution, q: Tensor) -> Tensor:
    """Smallest integer k (n,) with P(y <= k) >= q, summing probabilities in windows."""
    found = torch.full_like(law.mean, torch.inf)
    below = torch.zeros_like(found, dtype=torch.float64)
    # one-sided Chebyshev: the quantile lies below this
    last = law.mean + law.stddev * (q / (1.0 - q)).sqrt()
    limit = min(float(last.max()) + 1.0, MAX_COUNT) if last.numel() else 0.0
    for start in range(0, int(limit) + 1, COUNT_WINDOW):
        counts = torch.arange(start, start + COUNT_WINDOW, device=found.device).to(found)[:, None]
        reached = below + running_sum(law.log_prob(counts).double().exp())
        hit = reached >= q
        here = counts[hit.int().argmax(0), 0]
        found = torch.where(torch.isinf(found) & hit.any(0), here, found)
        below = reached[-1]
        if not bool(torch.isinf(found).any()):
            break
    # where rounding keeps the sum below q, Chebyshev's bound
    return torch.where(torch.isinf(found), last.ceil(), found)
