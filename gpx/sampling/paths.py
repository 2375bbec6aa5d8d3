"""Sampled posterior functions: prior functions corrected at points, and functions at their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from gpx.kernels.base import Kernel
from gpx.sampling.prior import PriorFunctions

Functions = Callable[[Tensor], Tensor]
"""x (n, d) -> (num, n): the same functions wherever and however often they are asked."""


@dataclass(frozen=True)
class ConditionedFunctions:
    """f(x) = prior(x) + weights k(points, x) + mean(x): pathwise conditioning (Wilson et al. 2020).

    Differentiable in x.

    Attributes:
        prior: functions of the prior.
        weights (num, m), points (m, d): of the corrections.
        kernel, mean: of the process, their parameters frozen.
    """

    prior: PriorFunctions
    weights: Tensor
    points: Tensor
    kernel: Kernel
    mean: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, n) at x (n, d). Cost: m multiply-adds and those of the prior a value."""
        change = self.weights @ self.kernel.evaluate(self.points, x).to(self.weights)
        return self.prior(x) + change.to(x) + self.mean(x)

    def each(self, x: Tensor) -> Tensor:
        """Values (num, r) of every function at r inputs of its own, x (num, r, d).

        Cost: as for num r values, where calling it would make num times as many; memory num r m.
        """
        num, r, d = x.shape
        rows = x.reshape(-1, d)
        cross = self.kernel.evaluate(rows, self.points).to(self.weights).view(num, r, -1)
        change = (cross @ self.weights.unsqueeze(2)).squeeze(2)
        return self.prior.each(x) + change.to(x) + self.mean(rows).view(num, r)


def each_at_its_own(functions: Functions, x: Tensor) -> Tensor:
    """Values (num, r) of every one of num functions at r inputs of its own, x (num, r, d).

    Cost: where ``functions`` have no ``each`` method, that of all of them at all inputs.
    """
    each = getattr(functions, "each", None)
    if each is not None:
        found: Tensor = each(x)
        return found
    num, r, d = x.shape
    return functions(x.reshape(-1, d)).view(num, num, r).diagonal().mT
