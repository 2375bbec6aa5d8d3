"""E log sum_c exp(f_c) for independent normal f_c, by one integral whatever their number.

The log-normaliser is the mean of a maximum of independent variables,

    E log sum_c exp(f_c) = E max_c (f_c + g_c) - gamma,    g_c standard Gumbel.

With phi_c(u) = E exp(-exp(f_c + u)), a one-dimensional Gauss sum over f_c, or over g_c where f_c
varies more, prod_c phi_c(u) is the distribution function of that maximum (at -u), integrated by the
trapezoid rule, which converges exponentially for such smooth functions. The points are evenly
spaced where the latents are about equally wide. Else they start just below the maximum and their
distances grow with that from the start: a latent whose bend is at a distance of x from there has a
standard deviation of at least about x / 9. The derivatives of the integral with respect to the
means are E softmax(f)_c.

On a CPU, rows whose latents all have standard deviations up to ``gumbel_lattice.MAX_DEVIATION`` are
integrated on one lattice, which is faster and more exact. Its size depends on the widest latent,
which a GPU would have to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr

from gpx.backends import row_chunks
from gpx.likelihoods import gumbel_lattice
from gpx.likelihoods.quadrature import GaussHermite, GaussLogExponential
from gpx.linalg.known_gradient import twice_differentiable

LEFT_MARGIN, RIGHT_MARGIN, MARGIN_DEVIATIONS = 8.0, 3.6, 5.0
"""The grid reaches from -LEFT_MARGIN to RIGHT_MARGIN, extended by MARGIN_DEVIATIONS latent standard
deviations on both sides, and for p classes by log(p / 4) on the left, as the largest of p equal
latents grows: outside, the integrand is an exponential tail up to a relative 4 exp(-8), or
below 1e-16."""

EULER = 0.5772156649015329
"""Mean of the standard Gumbel distribution."""

MAX_NARROW_DEVIATION = 1.25
"""Above this latent standard deviation the Gauss sum is over the Gumbel variable."""

MAX_RATE = 80.0
"""exp(-80) is still a normal float32 number; those below take a CPU many times as long."""

FAR = 60.0
"""Sums f_c + u beyond this are all the same, 0 or 1; exponentials of it are numbers of float32."""

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

BLOCK_BYTES = 2**21
"""Bytes of one array over all nodes and points on a CPU: much smaller ones cost more in calls, much
larger ones fall out of the cache."""

DEVICE_BYTES = 2**28
"""The same on a GPU, where few large blocks are best."""


class Rules(NamedTuple):
    """Gauss rules over f_c and over g_c, and the number of points of the trapezoid rule."""

    narrow: GaussHermite
    wide: GaussLogExponential
    num_steps: int


def expected_log_sum_exp(mean: Tensor, variance: Tensor, rules: Rules) -> Tensor:
    """E log sum_c exp(f_c) for independent f_c ~ N(mean_c, variance_c): (..., n, p) -> (..., n).

    Value and first derivatives are computed together, block by block, so that memory is that of a
    block; second derivatives take ``p Q T`` numbers a row (Q nodes, T points).
    """
    found = _LogSumExp.apply(mean, variance, rules)
    assert isinstance(found, Tensor)
    return found


def expected_shares(mean: Tensor, variance: Tensor, rules: Rules) -> Tensor:
    """E softmax(f), (..., n, p); rows sum to one."""
    if torch.is_grad_enabled() and (mean.requires_grad or variance.requires_grad):
        return _differentiable_shares(mean, variance, rules)
    shares = _value_and_slopes(mean, variance, rules, slopes=True)[1]
    return shares / shares.sum(-1, keepdim=True)


class Grid(NamedTuple):
    """Points of the trapezoid rule for the integral of reference - prod_c phi_c over u."""

    offset: Tensor  # (..., n), f and -u are relative to it
    points: Tensor  # (T, ..., n), u, ascending
    weights: Tensor  # (T, ..., n)
    reference: Tensor  # (T, ..., n), from 1 to 0; its integral is that of the step at u = 0
    beyond: Tensor  # (..., n), weight of the first point for the exponential tail before it

    def integral(self, product: Tensor) -> Tensor:
        """E max_c (f_c + g_c) - gamma, (..., n), from prod_c phi_c at the points (T, ..., n)."""
        total = (self.weights * (self.reference - product)).sum(0)
        return self.offset + total + self.beyond * (1.0 - product[0]) - EULER


@torch.no_grad()
def grid_of(mean: Tensor, variance: Tensor, num_steps: int) -> Grid:
    """The points for latents (..., n, p)."""
    num_latents = mean.shape[-1]
    deviation = variance.clamp_min(0.0).sqrt()
    narrowest, widest = deviation.amin(-1), deviation.amax(-1)
    uneven = widest > UNEVEN_RATIO * (1.0 + narrowest.square()).sqrt()
    more = max(0.0, math.log(num_latents / 4.0))
    num_points = math.ceil(num_steps * (1.0 + more / (LEFT_MARGIN + RIGHT_MARGIN)))
    left = LEFT_MARGIN + more
    if mean.is_cpu and not uneven.any():
        return _even_grid(mean, widest, num_points, left)
    graded = _graded_grid(mean, deviation, num_points, left)
    if mean.is_cpu and uneven.all():
        return graded
    even = _even_grid(mean, widest, num_points, left)
    return Grid(*(torch.where(uneven, *parts) for parts in zip(graded, even, strict=True)))


def _again(ctx: Any, _: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
    """The same value in differentiable operations, for second derivatives."""
    mean, variance = (tensor.view_as(tensor) for tensor in ctx.saved_tensors[:2])
    return _differentiable_value(mean, variance, ctx.rules), (mean, variance, None)


class _LogSumExp(torch.autograd.Function):
    """``expected_log_sum_exp`` with its gradient from the same pass."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, rules: Rules) -> Tensor:
        slopes = any(ctx.needs_input_grad[:2])
        value, *gradients = _value_and_slopes(mean, variance, rules, slopes=slopes)
        ctx.save_for_backward(mean, variance, *gradients)
        ctx.rules = rules
        return value

    @staticmethod
    @twice_differentiable(_again)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, _, by_mean, by_variance = ctx.saved_tensors
        each = grad.unsqueeze(-1)
        return each * by_mean, each * by_variance, None


@torch.no_grad()
def _value_and_slopes(
    mean: Tensor, variance: Tensor, rules: Rules, *, slopes: bool
) -> tuple[Tensor, ...]:
    """The expectation (..., n) and, if asked for, its derivatives by both arguments (..., n, p)."""
    shape, p = mean.shape, mean.shape[-1]

    def on_lattice(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        lattice = gumbel_lattice.lattice_for(variance, rules.num_steps)
        row = len(lattice.distances) * p * mean.element_size()
        blocks = [
            gumbel_lattice.value_and_slopes(mean[rows], variance[rows], lattice, slopes=slopes)
            for rows in row_chunks(len(mean), row, BLOCK_BYTES)
        ]
        return tuple(torch.cat(parts) for parts in zip(*blocks, strict=True))

    def by_rules(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        return _value_and_slopes_by_rules(mean, variance, rules, slopes=slopes)

    value, *gradients = _by_width(mean, variance, on_lattice, by_rules)
    return value.view(shape[:-1]), *(each.view(shape) for each in gradients)


def _by_width(
    mean: Tensor,
    variance: Tensor,
    on_lattice: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    by_rules: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Results of one function for rows (n, p) that the lattice takes, and of another for others."""
    shape, p = mean.shape, mean.shape[-1]
    mean, variance = mean.reshape(-1, p), variance.expand(shape).reshape(-1, p)
    if not mean.is_cpu or not len(mean):
        return by_rules(mean, variance)
    able = variance.amax(-1) <= gumbel_lattice.MAX_DEVIATION**2
    if able.all():
        return on_lattice(mean, variance)
    if not able.any():
        return by_rules(mean, variance)
    parts = on_lattice(mean[able], variance[able]), by_rules(mean[~able], variance[~able])
    order = torch.cat([able.nonzero(), (~able).nonzero()]).squeeze(1).argsort()
    return tuple(torch.cat(each)[order] for each in zip(*parts, strict=True))


def _value_and_slopes_by_rules(
    mean: Tensor, variance: Tensor, rules: Rules, *, slopes: bool
) -> tuple[Tensor, ...]:
    """As ``_value_and_slopes``, of rows (n, p) of any width, by Gauss sums at every point."""
    value, p = mean.new_empty(len(mean)), mean.shape[-1]
    gradients = [torch.empty_like(mean) for _ in range(2 if slopes else 0)]
    tiny = torch.finfo(mean.dtype).tiny
    deviation = variance.clamp_min(torch.finfo(mean.dtype).eps).sqrt()
    whole = grid_of(mean, variance, rules.num_steps)
    row = len(whole.points) * len(rules.narrow.nodes) * p * mean.element_size()
    for rows in row_chunks(len(mean), row, BLOCK_BYTES if mean.is_cpu else DEVICE_BYTES):
        grid = Grid(*(part[..., rows] for part in whole))
        # f_c + u at E f_c
        places = (mean[rows] - grid.offset.unsqueeze(-1)) + grid.points.unsqueeze(-1)
        below, *derivatives = _laws(places, deviation[rows], rules, slopes=slopes)  # (T, n, p)
        product = below.prod(-1)
        value[rows] = grid.integral(product)
        if slopes:
            weights = grid.weights.clone()
            weights[0] += grid.beyond
            others = (weights * product).unsqueeze(-1) / below.clamp_min(tiny)
            for gradient, derivative in zip(gradients, derivatives, strict=True):
                gradient[rows] = -(others * derivative).sum(0)
    if slopes:
        gradients[1].div_(2.0 * deviation)
    return value, *gradients


def _laws(places: Tensor, deviation: Tensor, rules: Rules, *, slopes: bool) -> tuple[Tensor, ...]:
    """phi_c (T, n, p) and, if asked for, its derivatives by E f_c and by the deviation of f_c.

    Args:
        places (T, n, p): E f_c + u.
        deviation (n, p): of f_c, positive.
    """
    is_wide = deviation > MAX_NARROW_DEVIATION
    if not places.is_cpu:
        both = zip(
            _wide_laws(places, deviation, rules, slopes),
            _narrow_laws(places, deviation, rules, slopes),
            strict=True,
        )
        return tuple(torch.where(is_wide, *parts) for parts in both)
    if not is_wide.any():
        return _narrow_laws(places, deviation, rules, slopes)
    if is_wide.all():
        return _wide_laws(places, deviation, rules, slopes)
    found = tuple(torch.empty_like(places) for _ in range(3 if slopes else 1))
    for laws, chosen in ((_wide_laws, is_wide), (_narrow_laws, ~is_wide)):
        parts = laws(places[:, chosen], deviation[chosen], rules, slopes)
        for whole, part in zip(found, parts, strict=True):
            whole[:, chosen] = part
    return found


def _narrow_laws(
    places: Tensor, deviation: Tensor, rules: Rules, slopes: bool
) -> tuple[Tensor, ...]:
    """As ``_laws``, by a Gauss sum over f_c; exponentials of sums are products of exponentials."""
    nodes = rules.narrow.nodes.to(places.dtype)
    weights = rules.narrow.weights.to(places.dtype)
    at_nodes = torch.exp(rules.narrow.beside(deviation) * deviation)  # (Q, ..., p)
    rate = at_nodes.unsqueeze(1) * torch.exp(places.clamp(-FAR, FAR))  # (Q, T, ..., p)
    rate.clamp_(max=MAX_RATE)
    decay = torch.exp(-rate)
    below = torch.tensordot(weights, decay, dims=1)
    if not slopes:
        return (below,)
    both = -torch.stack([weights, weights * nodes])
    return below, *torch.tensordot(both, rate.mul_(decay), dims=1)


def _wide_laws(places: Tensor, deviation: Tensor, rules: Rules, slopes: bool) -> tuple[Tensor, ...]:
    """As ``_laws``, by a Gauss sum over the Gumbel variable: phi_c = E P(f_c + u < e)."""
    weights = rules.wide.weights.to(places.dtype)
    ratio = (rules.wide.beside(places) - places) / deviation
    below = 0.5 + 0.5 * torch.tensordot(weights, torch.erf(ratio * math.sqrt(0.5)), dims=1)
    below.clamp_min_(torch.finfo(places.dtype).tiny)  # rounding of the sum may leave it negative
    if not slopes:
        return (below,)
    density = torch.exp(ratio.square().clamp_(max=2.0 * MAX_RATE).mul_(-0.5))
    scale = -1.0 / (math.sqrt(2.0 * math.pi) * deviation)
    by_mean = torch.tensordot(weights, density, dims=1)
    by_deviation = torch.tensordot(weights, density.mul_(ratio), dims=1)
    return below, by_mean * scale, by_deviation * scale


def _differentiable_value(mean: Tensor, variance: Tensor, rules: Rules) -> Tensor:
    """``expected_log_sum_exp`` in differentiable operations."""

    def on_lattice(mean: Tensor, variance: Tensor) -> tuple[Tensor]:
        lattice = gumbel_lattice.lattice_for(variance, rules.num_steps)
        return (gumbel_lattice.differentiable_value(mean, variance, lattice),)

    def by_rules(mean: Tensor, variance: Tensor) -> tuple[Tensor]:
        grid = grid_of(mean, variance, rules.num_steps)
        below, _ = _below_and_density(grid, mean, variance, rules)
        return (grid.integral(below.prod(-1)),)

    return _by_width(mean, variance, on_lattice, by_rules)[0].view(mean.shape[:-1])


def _differentiable_shares(mean: Tensor, variance: Tensor, rules: Rules) -> Tensor:
    """``expected_shares`` in differentiable operations."""

    def on_lattice(mean: Tensor, variance: Tensor) -> tuple[Tensor]:
        lattice = gumbel_lattice.lattice_for(variance, rules.num_steps)
        return (gumbel_lattice.differentiable_slopes(mean, variance, lattice),)

    def by_rules(mean: Tensor, variance: Tensor) -> tuple[Tensor]:
        grid = grid_of(mean, variance, rules.num_steps)
        below, density = _below_and_density(grid, mean, variance, rules)
        tiny = torch.finfo(mean.dtype).tiny
        terms = below.prod(-1, keepdim=True) * density / below.clamp_min(tiny)
        weights = grid.weights.unsqueeze(-1)
        return ((weights * terms).sum(0) + grid.beyond.unsqueeze(-1) * terms[0],)

    weight = _by_width(mean, variance, on_lattice, by_rules)[0].view(mean.shape)
    return weight / weight.sum(-1, keepdim=True)


def _below_and_density(grid: Grid, mean: Tensor, variance: Tensor, rules: Rules) -> Tensor:
    """phi_c and -dphi_c/du at every grid point: (2, T, ..., n, p), differentiable."""
    centres = mean - grid.offset.unsqueeze(-1)
    points = grid.points.unsqueeze(-1)

    def narrow() -> Tensor:
        nodes = rules.narrow.points(centres, variance)
        rate = torch.exp((nodes.unsqueeze(1) + points).clamp(-80.0, math.log(MAX_RATE)))
        decay = torch.exp(-rate)
        average = rules.narrow.average
        return torch.stack([average(decay), average(rate * decay)])

    def wide() -> Tensor:
        deviation = variance.clamp_min(MAX_NARROW_DEVIATION**2).sqrt()
        places = centres + points
        ratio = (rules.wide.beside(places) - places) / deviation
        density = torch.exp(-0.5 * ratio.square().clamp_max(2.0 * MAX_RATE)) / deviation
        average = rules.wide.average
        return torch.stack([average(ndtr(ratio)), average(density) / math.sqrt(2.0 * math.pi)])

    is_wide = variance > MAX_NARROW_DEVIATION**2
    if variance.is_cpu and not is_wide.any():
        return narrow()
    if variance.is_cpu and is_wide.all():
        return wide()
    return torch.where(is_wide, wide(), narrow())


def _even_grid(mean: Tensor, widest: Tensor, num_points: int, left: float) -> Grid:
    """From -left to RIGHT_MARGIN about the largest mean, and further for wide latents (..., n)."""
    low = left + MARGIN_DEVIATIONS * widest
    length = low + RIGHT_MARGIN + MARGIN_DEVIATIONS * widest
    share = torch.linspace(0, 1, num_points, dtype=mean.dtype, device=mean.device)
    points = share.view(-1, *(1 for _ in widest.shape)) * length - low
    step = length / (num_points - 1)
    ratio = torch.exp(-step)  # before the grid, 1 - phi is a geometric series
    return Grid(
        mean.amax(-1),
        points,
        step.expand_as(points),
        ndtr(-points / (0.55 + 0.7 * widest)),
        step * ratio / (1.0 - ratio),
    )


def _graded_grid(mean: Tensor, deviation: Tensor, num_points: int, left: float) -> Grid:
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
    return Grid(
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
