"""The prior of values that each see the nearest before them, and the best q(u) under it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.variational import expected_curvature
from gpx.likelihoods import Likelihood
from gpx.linalg import Jacobi, Preconditioner, cholesky, conjugate_gradients
from gpx.linalg.stopping import RelativeResidual
from gpx.methods.nearest.triangular_prior import TriangularFactor, UpdatedPrior

MAX_DENSE = 1024
"""Most values whose means are found by a dense factor; with more, iterations are faster."""

REFIT_TOLERANCE = 1e-4
"""Relative residual of the iterative solve for the means of q(u)."""

DIAGONAL_ITERATIONS, REFIT_ITERATIONS = 50, 500
"""Most iterations of that solve, preconditioned by the diagonal, and after these by the factor of
the prior. The diagonal suffices if a value is determined more by its own targets than by its
neighbours, as with little noise; an iteration with it is cheaper."""

MAX_SETTLING, SETTLED = 50, 1e-4
"""Limit of the steps to the best q(u) of a log-concave likelihood, and the gain in nats per row at
which they end."""

SMALLEST_STEP = 1e-4
"""Smallest share of such a step that is tried."""


class IndependentValues(NamedTuple):
    """q(u) = prod_j N(mean_j, deviation_j^2), and whether it is the best one to tolerance.

    Attributes:
        mean, deviation (m,): float64.
        converged: whether the solves and the steps ended by their tolerances.
    """

    mean: Tensor
    deviation: Tensor
    converged: bool


@dataclass(frozen=True, eq=False)
class ValuePrior:
    """p(u) = prod_j N(u_j; b_j^T u_N(j), r_j), of precision (I - B)^T R^{-1} (I - B); float64.

    Attributes:
        near (m, k): the indices N(j); any where weights are zero.
        weights (m, k): b.
        rest (m,): variances r.
    """

    near: Tensor
    weights: Tensor
    rest: Tensor

    @cached_property
    def factor(self) -> TriangularFactor:
        """I - B."""
        return TriangularFactor(self.near, self.weights)

    def precision_diagonal(self) -> Tensor:
        """Diagonal (m,) of the precision."""
        squares = self.weights.square() / self.rest.unsqueeze(1)
        return (1.0 / self.rest).index_add(0, self.near.flatten(), squares.flatten())

    def divergence(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """KL(q(u) || p(u)) () in nats, of independent values."""
        gap = mean - (self.weights * mean[self.near]).sum(1)
        spread = (self.weights * deviation[self.near]).square().sum(1)
        squares = (deviation.square() + gap.square() + spread) / self.rest
        return (0.5 * (squares - 1.0 + self.rest.log()) - deviation.log()).sum()

    def solve(self, sums: Tensor, data_precision: Tensor, start: Tensor) -> tuple[Tensor, bool]:
        """Solution (m,) of (precision + diag(data_precision)) v = sums, and whether it converged.

        Cost: m^3 / 3 for the dense factor of up to ``MAX_DENSE`` values; beyond, m k for each
        iteration of conjugate gradients from ``start``, of which some 50 to 150 are usual.
        """
        if len(self.rest) <= MAX_DENSE:
            rows = torch.eye(len(self.rest), dtype=self.rest.dtype, device=self.rest.device)
            rows.scatter_add_(1, self.near, -self.weights)
            dense = rows.mT @ (rows / self.rest.unsqueeze(1))
            dense.diagonal().add_(data_precision)
            name = f"the precision of q(u) at {len(dense)} inputs"
            factor, _ = cholesky(dense, name=name, ladder=(0.0,))
            return torch.cholesky_solve(sums.unsqueeze(1), factor).squeeze(1), True
        flat = self.near.flatten()

        def product(v: Tensor) -> Tensor:
            values = v.squeeze(1)  # index_add on columns takes ten times as long
            gap = (values - (self.weights * values[self.near]).sum(1)) / self.rest
            back = (self.weights * gap.unsqueeze(1)).flatten()
            total = gap + values * data_precision
            return total.index_add(0, flat, back, alpha=-1.0).unsqueeze(1)

        def iterated(
            preconditioner: Preconditioner, start: Tensor, limit: int
        ) -> tuple[Tensor, bool]:
            solved = conjugate_gradients(
                product,
                sums.unsqueeze(1),
                preconditioner=preconditioner,
                x0=start.unsqueeze(1),
                stop=RelativeResidual(REFIT_TOLERANCE),
                max_iterations=limit,
                on_failure="return",
            )
            return solved.solution.squeeze(1), solved.report.converged

        by_diagonal = Jacobi(self.precision_diagonal() + data_precision)
        few = min(DIAGONAL_ITERATIONS, REFIT_ITERATIONS)
        found, converged = iterated(by_diagonal, start, few)
        if converged:
            return found, True
        by_factor = UpdatedPrior(self.factor, 1.0 / self.rest + data_precision)
        return iterated(by_factor, found, REFIT_ITERATIONS)


class RowsOfValues(NamedTuple):
    """Rows of the data and the value that each observes.

    Attributes:
        y (n,), prior_mean (n,): targets, and the prior mean of f; float64.
        value_of (n,): index of the value of each row.
        shares (n,): weight of each row in a likelihood that is not Gaussian; None: one.
    """

    y: Tensor
    prior_mean: Tensor
    value_of: Tensor
    shares: Tensor | None = None


def best_under_noise(
    prior: ValuePrior, rows: RowsOfValues, precision: Tensor, start: Tensor
) -> IndependentValues:
    """The best q(u) under Gaussian noise of this precision (n,) of the rows.

    Args:
        start (m,): where the solve for the means begins.
    """
    residual = (rows.y - rows.prior_mean) * precision
    data_precision, sums = (
        torch.zeros_like(prior.rest).index_add_(0, rows.value_of, part)
        for part in (precision, residual)
    )
    mean, converged = prior.solve(sums, data_precision, start)
    deviation = (prior.precision_diagonal() + data_precision).rsqrt()
    return IndependentValues(mean, deviation, converged)


def best_under_likelihood(
    prior: ValuePrior, rows: RowsOfValues, likelihood: Likelihood, mean: Tensor, deviation: Tensor
) -> IndependentValues:
    """The best q(u) of a log-concave likelihood: the bound is raised until the sites agree.

    At the optimum every row acts like a Gaussian observation of precision E[-d^2 log p / df^2], and
    the slope of the bound is zero. Steps of Newton for the means, in which the bound is concave,
    and steps of the precisions towards the expected curvatures (a natural gradient; Khan and Lin
    2017) follow each other, each shortened until the bound rises.

    Args:
        mean, deviation (m,): where the steps begin, float64.

    Returns:
        the start, not converged, if the bound is not finite there.

    Cost: a solve and some evaluations of the likelihood for each step, of which two to ten are
    usual.
    """
    own, shares = prior.precision_diagonal(), 1.0 if rows.shares is None else rows.shares

    def bound(mean: Tensor, deviation: Tensor) -> float:
        f, variance = rows.prior_mean + mean[rows.value_of], deviation.square()[rows.value_of]
        expected = shares * likelihood.expected_log_prob(rows.y, f, variance)
        found = float(expected.sum() - prior.divergence(mean, deviation))
        return -math.inf if math.isnan(found) else found

    def sites(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        f, variance = rows.prior_mean + mean[rows.value_of], deviation.square()[rows.value_of]
        curvature = expected_curvature(likelihood, rows.y, f, variance)
        slope, bend = (
            torch.zeros_like(own).index_add_(0, rows.value_of, shares * part) for part in curvature
        )
        return slope, bend

    value, solves_converged = bound(mean, deviation), True
    if not math.isfinite(value):
        return IndependentValues(mean, deviation, False)
    for _ in range(MAX_SETTLING):
        before = value
        slope, bend = sites(mean, deviation)
        aim, solves_converged = prior.solve(slope + bend * mean, bend, mean)
        share = 1.0
        while share >= SMALLEST_STEP:
            tried = mean + share * (aim - mean)
            if (raised := bound(tried, deviation)) > value:
                mean, value = tried, raised
                break
            share /= 2.0
        wanted = -0.5 * (own + sites(mean, deviation)[1]).log() - deviation.log()
        share = 1.0
        while share >= SMALLEST_STEP:
            tried = deviation * (share * wanted).exp()
            if (raised := bound(mean, tried)) > value:
                deviation, value = tried, raised
                break
            share /= 2.0
        if value - before <= SETTLED * len(rows.y):
            return IndependentValues(mean, deviation, solves_converged)
    return IndependentValues(mean, deviation, False)
