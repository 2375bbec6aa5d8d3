"""Inducing points sampled by ridge leverage scores, exact or by recursive halving."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.errors import ConfigError
from gpx.inducing.base import Selection, Selector, random_rows
from gpx.kernels.base import Kernel
from gpx.linalg import cholesky, running_sum
from gpx.tensor_checks import check_at_least, check_positive

BLOCK_ENTRIES = 2**20
"""Kernel entries evaluated at once."""

BASE_SIZE = 64
"""Number of rows at which the recursion of adaptive sampling ends."""

MIN_RELATIVE_RIDGE = 1e-12
"""Smallest ridge, relative to the kernel's mean diagonal."""


class WeightedSample(NamedTuple):
    """Rows (m,) and their weights 1 / sqrt(probability) (m,)."""

    rows: Tensor
    weights: Tensor


class RecursionData(NamedTuple):
    """Arguments shared by all levels of the recursion.

    Attributes:
        x (n, d), kernel: float64.
        num_scores: S.
        base_size: sets up to this size are kept whole.
        generator: of all draws.
        limit: largest expected size of intermediate samples; None: as given by the scores. If it
            takes effect, scores come from fewer rows, and the guarantee is lost.
    """

    x: Tensor
    kernel: Kernel
    num_scores: int
    base_size: int
    generator: torch.Generator | None
    limit: int | None = None


def approximate_scores(
    kernel: Kernel, x: Tensor, z: Tensor, weights: Tensor, ridge: float
) -> Tensor:
    """(k_nn - k_nz (K_zz + ridge W^{-2})^{-1} k_zn) / ridge (n,), estimates of the exact scores.

    It is the conditional variance of f(x_n) given observations at z with noise variance
    ridge / weights^2, over the ridge: an upper bound of the exact scores for weights of one, which
    may fail for larger ones; with those of the sampling it holds with high probability (the first
    source of ``RidgeLeverage``).

    Args:
        kernel, x (n, d): covariance function and inputs.
        z (m, d), weights (m,): a subset of x, with the weights it was sampled with.
        ridge: in the unit of k.

    Cost: n m^2 / 2 multiply-adds, memory of one block.
    Raises: NotPositiveDefinite.
    """
    gram = kernel.evaluate(z, z)
    gram.diagonal().add_(ridge / weights.square())
    factor, _ = cholesky(
        gram, name=f"K_zz of {len(z)} leverage samples", ladder=(0.0, MIN_RELATIVE_RIDGE)
    )
    scores = kernel.diagonal(x).clone()
    for rows in row_slices(x.shape[0], max(1, BLOCK_ENTRIES // len(z))):
        half = torch.linalg.solve_triangular(factor, kernel.evaluate(z, x[rows]), upper=False)
        scores[rows] -= half.square_().sum(0)
    return scores.clamp_(min=0.0) / ridge


class RidgeLeverage(Selector):
    """M rows sampled with probabilities that follow their ridge leverage scores (Musco and Musco).

    The scores l_n = diag(K (K + w I)^{-1}) are estimated recursively, for all rows from a sample of
    a random half of the rows, drawn by the same method. Rows are taken with probability
    min(1, c l_n log(2 S / failure)) and weight 1 / sqrt(probability), and the ridge is
    w = (1 / S) sum_{m > S} lambda_m(W K_zz W), which adapts to the spectrum.

    Args:
        oversampling: c; the guarantee needs 5, from which the sample size follows.
        num_scores: S; None: about M / (4 log(M + 1)). The final sample is always scaled to M rows.
        failure: probability of failure of the guarantee, below 1/32.

    Guarantee with c = 5: the largest eigenvalue of K_xx - Q_xx is at most
    (1 / S) sum_{m > S} lambda_m(K_xx), except with probability 3 ``failure``.
    Cost: about n M^2 / 2 multiply-adds; memory M^2 and one block of kernel rows.
    Source: Musco and Musco 2017, algorithm 3; Burt thesis, section 3.1.2.
    """

    def __init__(
        self,
        oversampling: float = 1.0,
        num_scores: int | None = None,
        failure: float = 1.0 / 33.0,
    ) -> None:
        if oversampling <= 0.0 or not 0.0 < failure < 1.0:
            raise ConfigError(
                f"ridge leverage sampling needs oversampling > 0 and 0 < failure < 1, got "
                f"{oversampling} and {failure}"
            )
        check_at_least(1, num_scores=num_scores)
        self.oversampling = oversampling
        self.num_scores = num_scores
        self.failure = failure

    def _ridge(self, gram: Tensor, num_scores: int, scale: float) -> float:
        values = torch.linalg.eigvalsh(gram)
        tail = values[: max(0, len(values) - num_scores)].clamp(min=0.0).sum()
        return max(float(tail) / num_scores, MIN_RELATIVE_RIDGE * scale)

    def sample(self, data: RecursionData, active: Tensor, failure: float) -> WeightedSample:
        """The recursive sample of the ``active`` rows, of random size."""
        if len(active) <= data.base_size:
            return WeightedSample(active, torch.ones_like(data.x[active, 0]))
        probabilities = _inclusion_probabilities(self.chances(data, active, failure)[0], data.limit)
        taken = _bernoulli_rows(probabilities, data.generator)
        return WeightedSample(active[taken], probabilities[taken].rsqrt())

    def chances(self, data: RecursionData, active: Tensor, failure: float) -> tuple[Tensor, float]:
        """c times score times log factor of the active rows, not clipped at one, and the ridge."""
        x, kernel = data.x, data.kernel
        coins = torch.rand(len(active), generator=data.generator, device=x.device) < 0.5
        coins[0] |= ~coins.any()
        rows, weights = self.sample(data, active[coins], failure / 3.0)
        z = x[rows]
        gram = kernel.evaluate(z, z) * weights * weights.unsqueeze(1)
        ridge = self._ridge(gram, data.num_scores, float(kernel.diagonal(x[active]).mean()))
        scores = approximate_scores(kernel, x[active], z, weights, ridge)
        factor = self.oversampling * self._log_factor(scores, data.num_scores, failure)
        return factor * scores, ridge

    def _log_factor(self, scores: Tensor, num_scores: int, failure: float) -> float:
        return math.log(2.0 * num_scores / failure)

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        n, m = x.shape[0], num_inducing
        kernel = copy.deepcopy(kernel).double().requires_grad_(False)
        size = self.num_scores or math.ceil(0.25 * m / math.log(m + 1.0))
        if m == n:
            indices = torch.arange(n, device=x.device)
        else:
            data = RecursionData(x.double(), kernel, size, m, generator)
            chances, _ = self.chances(data, torch.arange(n, device=x.device), self.failure)
            indices = _draw_exactly(_inclusion_probabilities(chances), m, generator)
        return Selection(x[indices].clone(), indices)


class AdaptiveRidgeLeverage(RidgeLeverage):
    """Ridge leverage sampling with a given ridge; the number of points follows, up to M.

    Rows are taken with probability min(1, c l_n log(sum l / failure)). If a sample would exceed M
    rows, its probabilities are scaled down to M rows.

    Args:
        ridge: w, relative to the mean of k(x, x): the error that the points may leave.
        oversampling: c; the guarantee needs 3/2.
        failure: as in ``RidgeLeverage``.

    Guarantee with c = 3/2: K_xx - Q_xx <= w I, except with probability 3 ``failure``, unless M
    limits a sample: M must be at least c d log(d / failure), d the effective dimension at w.
    Cost: as ``RidgeLeverage``.
    Source: Musco and Musco 2017, algorithm 2; Burt thesis, section 3.1.2.
    """

    def __init__(
        self, ridge: float = 1e-2, oversampling: float = 1.0, failure: float = 1.0 / 33.0
    ) -> None:
        super().__init__(oversampling, None, failure)
        check_positive(ridge=ridge)
        self.ridge = ridge

    @property
    def may_choose_fewer(self) -> bool:
        """The ridge decides how many points there are."""
        return True

    def _ridge(self, gram: Tensor, num_scores: int, scale: float) -> float:
        return self.ridge * scale

    def _log_factor(self, scores: Tensor, num_scores: int, failure: float) -> float:
        return max(1.0, math.log(max(float(scores.sum()), 1.0) / failure))

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        kernel = copy.deepcopy(kernel).double().requires_grad_(False)
        rows = torch.arange(x.shape[0], device=x.device)
        if len(rows) > min(BASE_SIZE, num_inducing):
            data = RecursionData(x.double(), kernel, 1, BASE_SIZE, generator, num_inducing)
            chances, _ = self.chances(data, rows, self.failure)
            probabilities = _inclusion_probabilities(chances)
            if float(probabilities.sum()) > num_inducing:
                rows = _draw_exactly(chances, num_inducing, generator)
            else:
                rows = _bernoulli_rows(probabilities, generator)
                rows = rows[random_rows(len(rows), num_inducing, x, generator)]
        return Selection(x[rows].clone(), rows)


def _inclusion_probabilities(chances: Tensor, limit: int | None = None) -> Tensor:
    """min(1, s chances) (n,) with s = 1, or smaller so that they sum to ``limit`` at most."""
    found = chances.clamp(max=1.0)
    if limit is None or float(found.sum()) <= limit:
        return found
    # with the k largest at one, the others share limit - k; the smallest k with none above one
    ordered = chances.sort(descending=True).values
    rest = running_sum(ordered.flip(0)).flip(0)
    scales = (limit - torch.arange(len(ordered), device=ordered.device)) / rest
    first = int((scales * ordered <= 1.0).to(torch.uint8).argmax())
    return (scales[first] * chances).clamp_(max=1.0)


def _bernoulli_rows(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Rows taken independently with their probabilities; the likeliest one if none is."""
    draws = torch.rand(
        len(probabilities), generator=generator, device=probabilities.device, dtype=torch.float64
    )
    taken = draws < probabilities
    taken[probabilities.argmax()] |= ~taken.any()
    return taken.nonzero().squeeze(1)


def _draw_exactly(probabilities: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    """``size`` rows drawn without replacement in proportion to these probabilities."""
    # exponential races: the first arrivals at rates p are a weighted draw without replacement
    draws = torch.rand(
        len(probabilities), generator=generator, device=probabilities.device, dtype=torch.float64
    )
    arrivals = -torch.log1p(-draws) / probabilities.clamp(min=1e-300)
    return torch.topk(arrivals, size, largest=False).indices
