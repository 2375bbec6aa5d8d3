"""Several classes through the softmax of as many latent functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr

from gpx.errors import ConfigError
from gpx.likelihoods.base import Curvature, Likelihood, class_law, require_labels
from gpx.likelihoods.quadrature import GaussHermite, GaussLogExponential
from gpx.tensor_checks import check_at_least

LEFT_MARGIN, RIGHT_MARGIN, MARGIN_DEVIATIONS = 8.0, 3.6, 5.0
"""The grid reaches from -LEFT_MARGIN to RIGHT_MARGIN, extended by MARGIN_DEVIATIONS latent standard
deviations on both sides, and for p classes by log(p / 4) on the left, as the largest of p equal
latents grows: outside, the integrand is an exponential tail up to a relative 4 exp(-8), or
below 1e-16."""

EULER = 0.5772156649015329
"""Mean of the standard Gumbel distribution."""

MAX_NARROW_DEVIATION = 1.25
"""Above this latent standard deviation the Gauss sum is over the Gumbel variable."""

MAX_EXPONENT = 4.38
"""Exponents are clamped to this: exp(-exp(4.38)) = exp(-80) is still a normal float32 number."""


UNEVEN_RATIO = 4.0
"""Latents are uneven where the largest standard deviation is above this many times
sqrt(1 + s^2), s the smallest one: evenly spaced points would step over the narrow ones."""

START_DEVIATIONS, START_PROBABILITY = 4.27, 1e-5
"""Points for uneven latents start where the largest latent is less with this probability, that of a
normal variable this many standard deviations below its mean."""

NEWTON_STEPS = 8
"""Steps to that start: enough for 1,000 equal latents, and it need not be exact."""

POINTS_BEFORE_START = 5
"""Of the points for uneven latents, those below their start."""

GUMBEL_VARIANCE = math.pi**2 / 6.0


class _Grid(NamedTuple):
    """Points of the trapezoid rule for the integral of reference - prod_c phi_c over u."""

    offset: Tensor  # (..., n), f and -u are relative to it
    points: Tensor  # (T, ..., n), u, ascending
    weights: Tensor  # (T, ..., n)
    reference: Tensor  # (T, ..., n), from 1 to 0; its integral is that of the step at u = 0
    beyond: Tensor  # (..., n), weight of the first point for the exponential tail before it


class Softmax(Likelihood):
    """P(y = c | f) = exp(f_c) / sum_k exp(f_k), c = 0 ... p - 1.

    Expectations are deterministic and not bounds: the log-normaliser is the mean of a maximum of
    independent variables, E log sum_c exp(f_c) = E max_c (f_c + g_c) - gamma with g_c standard
    Gumbel, so one dimension suffices whatever the number of classes. With
    phi_c(u) = E exp(-exp(f_c + u)), a one-dimensional Gauss sum over f_c, or over g_c where f_c
    varies more, prod_c phi_c(u) is the distribution function of that maximum (at -u), integrated
    by the trapezoid rule, which converges exponentially for such smooth functions. The points are
    evenly spaced where the latents are about equally wide. Else they start just below the maximum
    and their distances grow with that from the start: a latent whose bend is at a distance of x
    from there has a standard deviation of at least about x / 9. The class
    probabilities E softmax(f)_c are the derivatives of the same integral with respect to the means.

    Args:
        num_classes: p, at least two.
        num_nodes: Q, nodes per latent of either rule.
        num_steps: T, trapezoid points for up to four classes; for more in proportion to the grid,
            which is 1.5 times as long at 1,000. With the defaults the error is below 1e-6 nats for
            latent standard deviations up to 2, below 1e-3 up to 4, and beyond below 1e-5 of the
            largest deviation, however narrow the others are.

    Cost: O(n p Q T) time and memory, twice that where some latents are narrow and others wide.
    """

    log_concave = True
    task = "multiclass"

    def __init__(self, num_classes: int, num_nodes: int = 20, num_steps: int = 48) -> None:
        super().__init__()
        if num_classes < 2:
            raise ConfigError(f"softmax needs at least two classes, got {num_classes}")
        check_at_least(8, num_steps=num_steps)
        self.num_latents = self.num_classes = num_classes
        self.num_steps = num_steps
        self.quadrature = GaussHermite(num_nodes)
        self.wide_quadrature = GaussLogExponential(num_nodes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "wide_quadrature" not in self._modules:  # of earlier versions
            nodes = self.quadrature.nodes
            self.wide_quadrature = GaussLogExponential(len(nodes)).to(nodes.device)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """f_y - log sum_c exp(f_c): f (..., n, p) -> (..., n)."""
        return self._pick(f, y) - f.logsumexp(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """mean_y - E log sum_c exp(f_c); (n,)."""
        return self._pick(mean, y) - self.expected_logsumexp(mean, variance)

    def expected_logsumexp(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log sum_c exp(f_c) for independent f_c ~ N(mean_c, variance_c): (n, p) -> (n,)."""
        grid = self._grid(mean, variance)
        below = self._below(grid, mean, variance).prod(-1)  # (T, n)
        total = (grid.weights * (grid.reference - below)).sum(0)
        return grid.offset + total + grid.beyond * (1.0 - below[0]) - EULER

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E softmax(f), (n, p); rows sum to one."""
        grid = self._grid(mean, variance)
        below, density = self._below_and_density(grid, mean, variance)  # (T, n, p) each
        tiny = torch.finfo(mean.dtype).tiny
        terms = below.prod(-1, keepdim=True) * density / below.clamp_min(tiny)
        weight = (grid.weights.unsqueeze(-1) * terms).sum(0) + grid.beyond.unsqueeze(-1) * terms[0]
        return weight / weight.sum(-1, keepdim=True)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.Categorical:
        """The averaged class probabilities, as ``class_law``."""
        return class_law(self.class_probabilities(mean, variance))

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """1[y = c] - softmax(f)_c and softmax(f)_c."""
        shares = f.softmax(-1)
        truth = torch.nn.functional.one_hot(y.long(), self.num_latents).to(shares)
        return Curvature(truth - shares, shares)

    @torch.no_grad()
    def _grid(self, mean: Tensor, variance: Tensor) -> _Grid:
        deviation = variance.clamp_min(0.0).sqrt()
        narrowest, widest = deviation.amin(-1), deviation.amax(-1)
        uneven = widest > UNEVEN_RATIO * (1.0 + narrowest.square()).sqrt()
        more = max(0.0, math.log(self.num_latents / 4.0))
        num_points = math.ceil(self.num_steps * (1.0 + more / (LEFT_MARGIN + RIGHT_MARGIN)))
        left = LEFT_MARGIN + more
        if mean.is_cpu and not uneven.any():
            return _even_grid(mean, widest, num_points, left)
        graded = _graded_grid(mean, deviation, num_points, left)
        if mean.is_cpu and uneven.all():
            return graded
        even = _even_grid(mean, widest, num_points, left)
        return _Grid(*(torch.where(uneven, *parts) for parts in zip(graded, even, strict=True)))

    def _below(self, grid: _Grid, mean: Tensor, variance: Tensor) -> Tensor:
        """phi_c at every grid point: (T, ..., n, p)."""

        def narrow() -> Tensor:
            return self.quadrature.average(torch.exp(-self._rate(grid, mean, variance)))

        def wide() -> Tensor:
            ratio, _ = self._wide(grid, mean, variance)
            return self.wide_quadrature.average(ndtr(ratio))

        return _choose(variance, narrow, wide)

    def _below_and_density(self, grid: _Grid, mean: Tensor, variance: Tensor) -> Tensor:
        """phi_c and -dphi_c/du at every grid point: (2, T, ..., n, p)."""

        def narrow() -> Tensor:
            rate = self._rate(grid, mean, variance)
            decay = torch.exp(-rate)
            average = self.quadrature.average
            return torch.stack([average(decay), average(rate * decay)])

        def wide() -> Tensor:
            ratio, deviation = self._wide(grid, mean, variance)
            density = torch.exp(-0.5 * ratio.square().clamp_max(160.0)) / deviation
            average = self.wide_quadrature.average
            return torch.stack([average(ndtr(ratio)), average(density) / math.sqrt(2.0 * math.pi)])

        return _choose(variance, narrow, wide)

    def _rate(self, grid: _Grid, mean: Tensor, variance: Tensor) -> Tensor:
        """exp(f_c + u) at every node of f and grid point: (Q, T, ..., n, p)."""
        nodes = self.quadrature.points(mean - grid.offset.unsqueeze(-1), variance)
        return torch.exp(
            (nodes.unsqueeze(1) + grid.points.unsqueeze(-1)).clamp(-80.0, MAX_EXPONENT)
        )

    def _wide(self, grid: _Grid, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """(e - E f_c - u) / s at every node of e and grid point (Q, T, ..., n, p); s (..., n, p).

        P(f_c + u < e) is the normal distribution function of the first.
        """
        deviation = variance.clamp_min(MAX_NARROW_DEVIATION**2).sqrt()
        centres = mean - grid.offset.unsqueeze(-1) + grid.points.unsqueeze(-1)  # (T, ..., n, p)
        return (self.wide_quadrature.beside(centres) - centres) / deviation, deviation

    def _pick(self, values: Tensor, y: Tensor) -> Tensor:
        """values (..., n, p) at the classes y (n,): (..., n)."""
        require_labels(self, y, values.shape[-1])
        index = y.long().unsqueeze(-1).expand(*values.shape[:-1], 1)
        return values.gather(-1, index).squeeze(-1)


def _even_grid(mean: Tensor, widest: Tensor, num_points: int, left: float) -> _Grid:
    """From -left to RIGHT_MARGIN about the largest mean, and further for wide latents (..., n)."""
    low = left + MARGIN_DEVIATIONS * widest
    length = low + RIGHT_MARGIN + MARGIN_DEVIATIONS * widest
    share = torch.linspace(0, 1, num_points, dtype=mean.dtype, device=mean.device)
    points = share.view(-1, *(1 for _ in widest.shape)) * length - low
    step = length / (num_points - 1)
    ratio = torch.exp(-step)  # before the grid, 1 - phi is a geometric series
    return _Grid(
        mean.amax(-1),
        points,
        step.expand_as(points),
        ndtr(-points / (0.55 + 0.7 * widest)),
        step * ratio / (1.0 - ratio),
    )


def _graded_grid(mean: Tensor, deviation: Tensor, num_points: int, left: float) -> _Grid:
    """Points u = -w sinh(t), t evenly spaced, about a low quantile of the largest latent.

    All bends of prod_c phi_c are then on one side of u = 0, each latent's at a distance of not
    more than 9 of its standard deviations, of which steps in proportion to the distance are
    parts. The reference is a function of t, as smooth on these points as the product.
    """
    start = _low_quantile_of_largest(mean, deviation)
    end = (mean + MARGIN_DEVIATIONS * deviation).amax(-1) + left
    unit = 2.0 * (1.0 + deviation.amin(-1).square()).sqrt()  # w
    first = num_points - 1 - POINTS_BEFORE_START
    number = torch.arange(
        first, -POINTS_BEFORE_START - 1, -1, dtype=mean.dtype, device=mean.device
    ).view(-1, *(1 for _ in start.shape))
    step = torch.asinh((end - start) / unit) / first
    t = number * step
    return _Grid(
        start,
        -unit * torch.sinh(t),
        step * unit * torch.cosh(t),
        ndtr(number / 1.2).expand_as(t),
        torch.zeros_like(start),  # 1 - phi is below 1e-6 there
    )


def _low_quantile_of_largest(mean: Tensor, deviation: Tensor) -> Tensor:
    """Where max_c (f_c + g_c) is less with START_PROBABILITY, g_c as if normal: (..., n).

    Newton's method for the logarithm of the probability, which is concave: from a start on the
    left it stays there.
    """
    centre, spread = mean + EULER, (deviation.square() + GUMBEL_VARIANCE).sqrt()
    point = (centre - START_DEVIATIONS * spread).amax(-1)
    for _ in range(NEWTON_STEPS):
        ratio = (point.unsqueeze(-1) - centre) / spread  # at least -START_DEVIATIONS
        log_below = log_ndtr(ratio)
        hazard = torch.exp(-0.5 * ratio.square() - log_below) / math.sqrt(2.0 * math.pi)
        slope = (hazard / spread).sum(-1)
        point = point + (math.log(START_PROBABILITY) - log_below.sum(-1)) / slope
    return point


def _choose(variance: Tensor, narrow: Callable[[], Tensor], wide: Callable[[], Tensor]) -> Tensor:
    """Of every latent the rule for its variance; on a CPU one that no latent needs is left out."""
    is_wide = variance > MAX_NARROW_DEVIATION**2
    if variance.is_cpu and not is_wide.any():
        return narrow()
    if variance.is_cpu and is_wide.all():
        return wide()
    return torch.where(is_wide, wide(), narrow())


def class_shares(likelihood: Likelihood, f: Tensor) -> Tensor:
    """P(y = c | f) of every class c for any likelihood of C classes: (..., n, C) -> (..., n, C)."""
    if type(likelihood).log_prob is Softmax.log_prob:
        return f.softmax(-1)  # by log_prob every class would take the sum over all of them
    labels = [f.new_full(f.shape[-2:-1], label) for label in range(f.shape[-1])]
    return torch.stack([likelihood.log_prob(y, f).exp() for y in labels], -1)
