"""A start of q(v) for log-concave likelihoods: Laplace's approximation, settled in the bound."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpx.inference.variational.strategy import InducingVariables
from gpx.likelihoods import Likelihood
from gpx.linalg.triangular import inverse_lower
from gpx.means.base import Mean

MAX_NEWTON, SMALLEST_NEWTON = 50, 1e-9
"""Limit of Newton's steps in a row, and smallest share of one that is tried: from a prior mean far
below large counts a whole step goes much too far."""

MAX_SETTLING, SETTLED = 40, 1e-4
"""Limit of the steps that settle the sites, and the gain in nats per row at which they end."""

SMALLEST_STEP = 1.0 / 64.0
"""Change of a site's log precision below which a step is given up."""

PRECISIONS = -30.0, 20.0
"""Smallest and largest logarithm of a site's precision; with larger ones the precision of v would
lose the identity in it to rounding."""


RAISED = 1.0, 3.0, 6.0
"""Smallest logarithms of the sites' precisions that are tried where the bound is infinite without:
under a very wide prior, the sites of zero counts would leave f so wide that exp(f) overflows."""


class SiteLikelihood(Protocol):
    """What sites are made from: a likelihood of one latent function, or one beside a known part."""

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """As in ``Likelihood``."""


class ExpectedCurvature(NamedTuple):
    """Derivatives of E log p(y | f) under f ~ N(mean, v), of each row.

    Attributes:
        slope (n,): in the mean.
        precision (n,): -2 times that in v, not negative: minus the expected second derivative of
            log p, and the precision of the Gaussian site with the same optimal covariance.
    """

    slope: Tensor
    precision: Tensor


def expected_curvature(
    likelihood: SiteLikelihood, y: Tensor, mean: Tensor, variance: Tensor
) -> ExpectedCurvature:
    """``ExpectedCurvature`` at y (n,), mean (n,) and variance (n,) of one latent function."""
    with torch.enable_grad():
        m, v = (part.detach().clone().requires_grad_() for part in (mean, variance))
        total = likelihood.expected_log_prob(y, m, v).sum()
        # an expectation of one's own may neglect the variance
        slope, by_variance = torch.autograd.grad(
            total, [m, v], allow_unused=True, materialize_grads=True
        )
    return ExpectedCurvature(slope, (-2.0 * by_variance).clamp_min(0.0))


def has_concave_start(likelihood: Likelihood) -> bool:
    """Whether ``concave_start`` takes this likelihood."""
    return likelihood.is_curved and likelihood.task != "regression"


@torch.no_grad()
def concave_start(
    variables: InducingVariables, mean: Mean, x: Tensor, y: Tensor, likelihood: Likelihood
) -> tuple[Tensor, Tensor] | None:
    """Mean (1, M) and lower factor (1, M, M) of a q(v) close to that of highest bound, in float64.

    Laplace's approximation is first, which neglects the variance of f given v. Its sites have the
    curvature at the mode. Where many counts are zero under a wide prior that is next to nothing,
    and the expected rate exp(f + var / 2) astronomic; so sites and mean are then moved, by turns,
    towards the fixed point of the bound, as long as the bound rises.

    None: Newton's method found no mode, or the bound is not finite around it.

    Args:
        variables: u at the current hyperparameters.
        mean: prior mean of f.
        x (n, d), y (n,): rows, all in memory.
        likelihood: as ``has_concave_start`` says.

    Cost: O(n M^2 + M^3) for each step, of which ten to thirty are usual.
    """
    whitener, prior = variables.whitener(), mean(x).double()
    columns = torch.empty(len(x), whitener.z.shape[0], dtype=torch.float64, device=x.device)
    columns = whitener.block(x, columns)
    y = y.double()
    found = _laplace(likelihood, columns, prior, y)
    if found is None:
        return None
    rest = (variables.kernel.diagonal(x).double() - columns.square().sum(1)).clamp_min(0.0)
    settled = _settled(likelihood, columns, prior, rest, y, *found)
    if settled is None:
        return None
    v, factor = settled
    return v[None], torch.linalg.cholesky(torch.cholesky_inverse(factor))[None]


def _laplace(
    likelihood: Likelihood, columns: Tensor, prior: Tensor, y: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The mode of v (M,), and the precisions of the sites (n,) there."""

    def objective(v: Tensor) -> float:
        return float(likelihood.log_prob(y, prior + columns @ v).sum() - 0.5 * v.square().sum())

    v = columns.new_zeros(columns.shape[1])
    value = objective(v)
    if not math.isfinite(value):
        return None
    for _ in range(MAX_NEWTON):
        slope, information = likelihood.curvature(y, prior + columns @ v)
        factor = _factor(columns, information)
        direction = torch.cholesky_solve((columns.mT @ slope - v)[:, None], factor).squeeze(1)
        length = 1.0
        while (
            not (found := objective(v + length * direction)) >= value and length > SMALLEST_NEWTON
        ):
            length /= 2.0
        if not found >= value:
            return None
        v, gain, value = v + length * direction, found - value, found
        if gain < 1e-6 * abs(value):
            return v, information
    return None


def _settled(
    likelihood: Likelihood,
    columns: Tensor,
    prior: Tensor,
    rest: Tensor,
    y: Tensor,
    v: Tensor,
    precision: Tensor,
) -> tuple[Tensor, Tensor] | None:
    """v (M,) and the factor of its precision (M, M) after steps that raise the bound; None: it is
    not finite.

    Args:
        columns (n, M), prior (n,), rest (n,): f has the mean ``prior + columns v`` given v, and
            the variance ``rest``.
        v (M,), precision (n,): mean of q(v), and precisions of the sites, at the start.
    """

    def terms(log_precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factor of the precision of q, variances of f (n,), and KL but for the mean ()."""
        factor = _factor(columns, log_precision.exp())
        inverse = inverse_lower(factor)
        variance = rest + (columns @ inverse.mT).square().sum(1)
        logs = factor.diagonal().log().sum()
        return factor, variance, 0.5 * (inverse.square().sum() - len(v)) + logs

    def bound(v: Tensor, variance: Tensor, divergence: Tensor) -> float:
        expected = likelihood.expected_log_prob(y, prior + columns @ v, variance).sum()
        found = float(expected - 0.5 * v.square().sum() - divergence)
        return -math.inf if math.isnan(found) else found

    def moved(v: Tensor, value: float) -> tuple[Tensor, float]:
        """v and the bound after a step of Newton at the present sites; more while they pay."""
        for _ in range(MAX_NEWTON):
            slope, bend = expected_curvature(likelihood, y, prior + columns @ v, variance)
            # the curvature of the bound, which may be far from the precisions of the sites
            inner = _factor(columns, bend)
            if not bool(inner[0, 0].isfinite()):  # the identity in it is below rounding
                inner = _factor(columns, bend, damping=len(y) * torch.finfo(bend.dtype).eps)
            direction = torch.cholesky_solve((columns.mT @ slope - v)[:, None], inner).squeeze(1)
            length = 1.0
            while not (found := bound(v + length * direction, variance, divergence)) >= value:
                length /= 2.0
                if length < SMALLEST_NEWTON:
                    return v, value
            v, gain, value = v + length * direction, found - value, found
            if not gain > 0.1 * abs(value):  # in a tail of exp(f) every step gains more
                break
        return v, value

    for least in (PRECISIONS[0], *RAISED):
        sites = precision.log().clamp(least, PRECISIONS[1])
        factor, variance, divergence = terms(sites)
        value = bound(v, variance, divergence)
        if math.isfinite(value):
            break
    else:
        return None
    reach = PRECISIONS[1] - PRECISIONS[0]
    for _ in range(MAX_SETTLING):
        before = value
        v, value = moved(v, value)
        wanted = expected_curvature(likelihood, y, prior + columns @ v, variance).precision
        change = wanted.log().clamp(*PRECISIONS) - sites
        reach = min(reach, max(float(change.abs().max()), SMALLEST_STEP))
        while reach >= SMALLEST_STEP:
            step = change.clamp(-reach, reach)
            tried = terms(sites + step)
            raised = bound(v, *tried[1:])
            if raised >= value:
                sites, (factor, variance, divergence), value = sites + step, tried, raised
                break
            reach /= 2.0
        if not value - before > SETTLED * len(y):
            break
        reach = 2.0 * max(reach, SMALLEST_STEP)
    return v, factor


def _factor(columns: Tensor, precision: Tensor, damping: float = 0.0) -> Tensor:
    """Lower factor of I + A^T diag(precision) A, the precision of v; NaN where there is none.

    ``damping`` is a share of its diagonal that is added to it.
    """
    gram = columns.mT @ (precision[:, None] * columns)
    gram.diagonal().mul_(1.0 + damping).add_(1.0)
    factor, failed = torch.linalg.cholesky_ex(gram)
    return torch.where(failed == 0, factor, math.nan)
