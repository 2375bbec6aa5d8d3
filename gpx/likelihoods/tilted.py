"""The distribution of one latent value given its target: its moments, also by quadrature."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

DROP = 40.0
"""Nats below its maximum at which the density of f given y is cut off: e^-40 is below rounding."""

NUM_NODES = 64
"""Gauss-Legendre nodes on each side of the mode."""

MAX_STEPS, STEPS_PER_CHECK, ACCURACY = 200, 4, 1e-9
"""Of the search for the mode: most steps, how many follow without a wait for a device, and the
relative change at which it ends; the nodes need no exact one."""

MAX_DOUBLINGS = 64
"""Most doublings of the distance between which the mode is searched."""

WIDTH_STEPS, WIDTH_RANGE = 10, 20.0
"""Bisections for the logarithm of the width on each side of the mode, and range searched."""

WIDE = 1e-4
"""Largest product of the variance and the mean curvature at which slopes give the moments."""


class Curvature(NamedTuple):
    """First and second derivatives of log p(y | f) with respect to the latents of each row.

    Attributes:
        gradient (..., n) or (..., n, p): d log p / df.
        information (..., n) or (..., n, p): w >= 0. Minus the second derivative is w for one
            latent, and diag(w) - w w^T with the entries of w adding to one for p of them.
    """

    gradient: Tensor
    information: Tensor


class Tilted(NamedTuple):
    """log Z = log E p(y | f) under f ~ N(mean, variance), and its derivatives in the mean.

    f given y then has mean ``mean + variance * gradient`` and variance
    ``variance - variance^2 * information``.

    Attributes:
        log_normaliser (..., n): log Z, nats.
        gradient (..., n): d log Z / d mean.
        information (..., n): minus the second derivative.
    """

    log_normaliser: Tensor
    gradient: Tensor
    information: Tensor


class LogConcave(Protocol):
    """A likelihood of one latent value, log-concave in it, with two derivatives."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), nats."""

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """Derivatives of ``log_prob``."""


def tilted_by_quadrature(
    likelihood: LogConcave, y: Tensor, mean: Tensor, variance: Tensor
) -> Tilted:
    """``Tilted`` of any log-concave likelihood, in float64.

    The density of f given y has one mode. It is found by Newton's method between bounds, and so are
    the places on both sides where the density is e^-40 of its maximum; between the mode and each of
    them stand ``NUM_NODES`` nodes. Each side has its own scale: where y = 0 is a count, the density
    falls as a normal one on the left and as exp(-e^f) on the right.

    Args:
        likelihood: defines ``curvature``.
        y (n,): targets.
        mean, variance (..., n): of f.

    Returns:
        the log normaliser is differentiable in mean and variance and in the likelihood's own
        parameters. Its error is below 1e-6 nats in the cases of
        ``tests/likelihoods/test_tilted.py``, counts up to 10^6 and variances up to 10^4.

    Cost: 2 ``NUM_NODES`` evaluations of the likelihood for each entry, and some 50 for the bounds.
    """
    centre, spread = mean.double(), variance.double().clamp_min(torch.finfo(torch.float64).tiny)
    target = y.double()

    def log_density(offset: Tensor) -> Tensor:
        """Of f = mode + offset and y together, up to the constant of the normal density."""
        # the offset may be below the digits of the mode
        normal = ((mode - centre) + offset).square() / spread
        return likelihood.log_prob(target, mode + offset) - 0.5 * normal

    with torch.no_grad():
        mode = _mode(likelihood, target, centre, spread)
        sides = torch.tensor([-1.0, 1.0], dtype=mode.dtype, device=mode.device)
        sides = sides.view(2, *(1 for _ in mode.shape))
        # the normal factor alone has fallen by DROP there
        high = (2.0 * DROP * spread).sqrt().log().expand(2, *mode.shape)
        low, top = high - WIDTH_RANGE, log_density(torch.zeros_like(mode))
        for _ in range(WIDTH_STEPS):
            middle = 0.5 * (low + high)
            beyond = ~(top - log_density(sides * middle.exp()) <= DROP)  # also if NaN
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
        nodes, log_shares = (
            part.to(mode.device).view(-1, 1, *(1 for _ in mode.shape)) for part in _rule()
        )
        offsets = sides * high.exp() * nodes
        # in deviations from the mean: derivatives by mean and variance then pass through the slopes
        # of the likelihood, and keep their digits where the variance is small
        steps = ((mode - centre) + offsets) / spread.sqrt()
        log_shares = log_shares + (high - 0.5 * spread.log())
    f = centre + spread.sqrt() * steps
    logs = likelihood.log_prob(target, f) - 0.5 * steps.square() + log_shares
    log_total = torch.logsumexp(logs, dim=(0, 1))
    with torch.no_grad():
        shares = (logs - log_total).exp()
        slopes, bends = likelihood.curvature(target, f)
        slope, bend = (shares * slopes).sum((0, 1)), (shares * bends).sum((0, 1))
        information = bend - (shares * (slopes - slope).square()).sum((0, 1))
        # where f given y has nearly the moments of the prior, their differences have no digits;
        # elsewhere the slopes have the larger errors, as few nodes stand where they change
        shift = (shares * offsets).sum((0, 1))
        narrow = (shares * (offsets - shift).square()).sum((0, 1))
        wide = spread * bend < WIDE
        gradient = torch.where(wide, slope, (mode + shift - centre) / spread)
        information = torch.where(wide, information, (1.0 - narrow / spread) / spread)
    return Tilted(log_total - 0.5 * math.log(2.0 * math.pi), gradient, information)


def _mode(likelihood: LogConcave, y: Tensor, centre: Tensor, spread: Tensor) -> Tensor:
    """The mode (..., n) of f given y: Newton's method, with bisection where it steps too far.

    The slope of log p at the centre, which falls as f grows, bounds how far the mode is from there.
    Where that is far, as at exp(140) expected counts, the distance is first found up to a factor of
    two.
    """
    towards = spread * likelihood.curvature(y, centre).gradient
    reach, far = spread.sqrt().clamp_min(1.0), centre + towards
    for step in range(MAX_DOUBLINGS):
        slope = likelihood.curvature(y, centre + towards.sign() * reach).gradient
        # the density still rises away from the centre
        short = (towards.sign() * slope * spread > reach) & (reach < towards.abs())
        if step % STEPS_PER_CHECK == 0 and not bool(short.any()):
            break
        reach = torch.where(short, 2.0 * reach, reach)
    far = torch.where(reach < towards.abs(), centre + towards.sign() * reach, far)
    low, high = torch.minimum(centre, far), torch.maximum(centre, far)
    f, last, before = centre, towards.abs(), towards.abs()
    for step in range(MAX_STEPS):
        slope, bend = likelihood.curvature(y, f)
        rise = slope - (f - centre) / spread
        low, high = torch.where(rise > 0.0, f, low), torch.where(rise > 0.0, high, f)
        found = f + rise / (bend + 1.0 / spread)
        # in tails of exp(f) Newton's steps have length one, whatever is left of the way
        good = (found > low) & (found < high) & (2.0 * (found - f).abs() < before)
        found = torch.where(good, found, 0.5 * (low + high))
        before, last = last, (found - f).abs()
        f = found
        ends = step % STEPS_PER_CHECK == STEPS_PER_CHECK - 1
        if ends and bool((last <= ACCURACY * (1.0 + f.abs())).all()):
            break
    return f


@lru_cache
def _rule() -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes between 0 and 1, and logarithms of their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    return torch.from_numpy(0.5 * (nodes + 1.0)), torch.from_numpy(np.log(0.5 * weights))
