"""Sampled posterior functions: prior functions with a correction at given points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from gpx.kernels.base import Kernel
from gpx.sampling.prior import PriorFunctions

Functions = Callable[[Tensor], Tensor]
"""x (n, d) -> (num, n): the same functions in every call."""


@dataclass(frozen=True)
class ConditionedFunctions:
    """f(x) = prior(x) + weights k(points, x) + mean(x): pathwise conditioning (Wilson et al. 2020).

    Differentiable in x.

    Attributes:
        prior: functions of the prior.
        weights (num, m), points (m, d): of the corrections.
        kernel, mean: of the process, with frozen parameters.
    """

    prior: PriorFunctions
    weights: Tensor
    points: Tensor
    kernel: Kernel
    mean: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, n) at x (n, d). Cost per value: that of the prior and m multiply-adds."""
        correction = self.weights @ self.kernel.evaluate(self.points, x).to(self.weights)
        return self.prior(x) + correction.to(x) + self.mean(x)

    def each(self, x: Tensor) -> Tensor:
        """Values (num, r) of function i at its own inputs x[i], x (num, r, d).

        Cost: that of num r values, a factor of num less than a call at all inputs; memory num r m.
        """
        num, r, d = x.shape
        rows = x.reshape(-1, d)
        cross = self.kernel.evaluate(rows, self.points).to(self.weights).view(num, r, -1)
        correction = (cross @ self.weights.unsqueeze(2)).squeeze(2)
        return self.prior.each(x) + correction.to(x) + self.mean(rows).view(num, r)


def evaluate_each(functions: Functions, x: Tensor) -> Tensor:
    """Values (num, r) of function i at its own inputs x[i], x (num, r, d).

    Cost: if ``functions`` have no ``each`` method, that of all functions at all inputs.
    """
    each = getattr(functions, "each", None)
    if each is not None:
        found: Tensor = each(x)
        return found
    num, r, d = x.shape
    return functions(x.reshape(-1, d)).view(num, num, r).diagonal().mT
