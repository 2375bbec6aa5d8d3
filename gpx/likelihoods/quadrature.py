"""Gauss quadrature: expectations under a normal distribution, also of the logistic function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.special import ndtr

from gpx.tensor_checks import check_at_least

MAX_NARROW_DEVIATION = 2.0
"""Up to this standard deviation of f, ``GaussLogistic`` uses Gauss-Hermite nodes of f."""


class FixedRule(nn.Module):
    """Nodes and weights of a quadrature rule, kept in float64.

    Attributes:
        nodes (Q,): float64.
        weights (Q,): sum to one, float64.
    """

    nodes: Tensor
    weights: Tensor

    def __init__(self, nodes: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        super().__init__()
        self.register_buffer("nodes", torch.from_numpy(nodes), persistent=False)
        self.register_buffer("weights", torch.from_numpy(weights / weights.sum()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FixedRule:
        """Move to the module's device, but stay in float64."""
        nodes, weights = self.nodes, self.weights
        super()._apply(fn, recurse)
        self.nodes = nodes.to(self.nodes.device)
        self.weights = weights.to(self.weights.device)
        return self

    def beside(self, values: Tensor) -> Tensor:
        """The nodes along a new leading dimension of values (n, ...): (Q, 1, ...)."""
        return self.nodes.to(values.dtype).view(-1, *(1 for _ in values.shape))

    def average(self, values: Tensor) -> Tensor:
        """Weighted sum over the leading dimension: (Q, ...) -> (...)."""
        return torch.tensordot(self.weights.to(values.dtype), values, dims=1)


@lru_cache
def _smallest_gap(count: int) -> float:
    nodes, _ = np.polynomial.hermite_e.hermegauss(count)
    return float(np.diff(np.sort(nodes)).min(initial=np.inf))


class GaussHermite(FixedRule):
    """E h(f) for f ~ N(mean, variance) as a weighted sum over fixed nodes.

    Exact for polynomials up to degree 2 num_nodes - 1; for smooth h the error falls faster than
    any power of num_nodes, but it grows when h varies over a scale much shorter than the standard
    deviation of f.

    Args:
        num_nodes: Q, at least one; 20 suffices for likelihoods near unit scale.

    Attributes:
        nodes (Q,): roots in units of the standard deviation, float64.
        weights (Q,): sum to one, float64.
    """

    def __init__(self, num_nodes: int = 20) -> None:
        check_at_least(1, num_nodes=num_nodes)
        super().__init__(*np.polynomial.hermite_e.hermegauss(num_nodes))

    @property
    def gap(self) -> float:
        """Smallest distance of two nodes."""
        return _smallest_gap(len(self.nodes))

    def points(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Values of f at the nodes: (n, ...) -> (Q, n, ...).

        Variances below the rounding unit of the dtype count as that unit, so that the gradient of
        the square root stays finite at zero.
        """
        scale = variance.clamp_min(torch.finfo(variance.dtype).eps).sqrt()
        return mean + scale * self.beside(mean)

    def expectation(
        self, function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor
    ) -> Tensor:
        """E function(f), elementwise: function maps (Q, n) to (Q, n); result (n,).

        Cost: Q evaluations per element.
        """
        return self.average(function(self.points(mean, variance)))

    def mixture(
        self,
        law: Callable[[Tensor], torch.distributions.Distribution],
        mean: Tensor,
        variance: Tensor,
    ) -> torch.distributions.MixtureSameFamily:
        """Mixture of ``law(f)`` over the nodes f (n, Q) of every element of mean and variance."""
        component = law(self.points(mean, variance).movedim(0, -1))
        weights = self.weights.to(component.mean.dtype).expand(component.batch_shape)
        return torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(probs=weights), component
        )


class GaussLogistic(FixedRule):
    """Expectations of the logistic function and its integral over f ~ N(mean, variance).

    The logistic function is the distribution function of a logistic variable e, so that
    E sigmoid(f) = P(e < f) = E Phi((mean - e) / s), s the standard deviation of f, and
    E log(1 + exp(f)) = E max(f - e, 0), with closed forms of the expectation over f. A Gauss rule
    over e converges faster for large s, a Gauss-Hermite rule over f for small s: the first is used
    for s above ``MAX_NARROW_DEVIATION``.

    Args:
        num_nodes: Q of each rule, at least one. With 20 both expectations are within 1.2e-5 for
            any mean and variance, with 32 within 1e-6.

    Source: the recurrence of the polynomials orthogonal under the logistic density, which are
    Meixner-Pollaczek polynomials, has b_n = pi^2 n^4 / (4 n^2 - 1) (Koekoek et al. 2010, 9.7);
    nodes and weights are the eigenvalues and first components of its matrix (Golub and Welsch
    1969).
    """

    def __init__(self, num_nodes: int = 20) -> None:
        narrow = GaussHermite(num_nodes)  # checks num_nodes
        order = np.arange(1.0, num_nodes)
        beside = math.pi * order**2 / np.sqrt(4.0 * order**2 - 1.0)
        nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
        super().__init__(nodes, vectors[0] ** 2)
        self.narrow = narrow

    def sigmoid(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E 1 / (1 + exp(-f)), elementwise; (n,).

        Logarithms of small values are right to 1 % down to e^-40. Further out the rules may miss
        the tail; the result is kept above sigmoid(mean), which is less than the expectation for a
        negative mean (and below it for a positive one).

        Cost: 2 Q evaluations per element.
        """
        deviation, offsets = self._wide(mean, variance)
        wide = self.average(ndtr(offsets / deviation))
        narrow = self.narrow.expectation(torch.sigmoid, mean, variance)
        value, at_mean = self._choose(variance, wide, narrow), torch.sigmoid(mean)
        return torch.where(mean < 0.0, torch.maximum(value, at_mean), torch.minimum(value, at_mean))

    def softplus(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log(1 + exp(f)), elementwise; (n,).

        Cost: 2 Q evaluations per element.
        """
        deviation, offsets = self._wide(mean, variance)
        ratio = offsets / deviation
        density = torch.exp(-0.5 * ratio.square().clamp_max(160.0)) / math.sqrt(2.0 * math.pi)
        wide = self.average(deviation * density + offsets * ndtr(ratio))
        return self._choose(variance, wide, self.narrow.expectation(softplus, mean, variance))

    def _wide(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Standard deviations (n,), and mean - e (Q, n)."""
        return variance.clamp_min(MAX_NARROW_DEVIATION**2).sqrt(), mean - self.beside(mean)

    def _choose(self, variance: Tensor, wide: Tensor, narrow: Tensor) -> Tensor:
        return torch.where(variance > MAX_NARROW_DEVIATION**2, wide, narrow)


class GaussLogExponential(FixedRule):
    """E h(e) as a weighted sum, e the logarithm of a standard exponential variable.

    Its density is exp(e - exp(e)); -e is a standard Gumbel variable, and
    E exp(-exp(f)) = P(f < e) = E Phi((e - mean) / s) for f ~ N(mean, s^2).

    Args:
        num_nodes: Q, at least one.

    Source: the three-term recurrence of the orthogonal polynomials by Lanczos' iteration on a
    fine grid (Gautschi 1982), nodes and weights from its matrix (Golub and Welsch 1969).
    """

    def __init__(self, num_nodes: int = 20) -> None:
        check_at_least(1, num_nodes=num_nodes)
        super().__init__(*_log_exponential_rule(num_nodes))


@lru_cache
def _log_exponential_rule(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # e^(2 count) exp(e) is largest at e = -2 count
    grid = np.arange(-4.0 * count - 80.0, 6.5, 0.01)
    weights = np.exp(grid - np.exp(grid))
    basis = [np.sqrt(weights / weights.sum())]
    diagonal, beside = np.empty(count), np.empty(count)
    for i in range(count):
        following = grid * basis[-1]
        diagonal[i] = following @ basis[-1]
        for _ in range(2):  # the second time removes what rounding left of the first
            following -= np.stack(basis).T @ (np.stack(basis) @ following)
        beside[i] = np.linalg.norm(following)
        basis.append(following / beside[i])
    off = beside[:-1]
    nodes, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    return nodes, vectors[0] ** 2
