"""Inducing points by conditional variance given the points chosen before.

The next point is the one of largest variance (greedy), or random with probability proportional to
it; both are pivots of a partial Cholesky factorisation of K_xx.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inducing.base import Selection, Selector, fill_with_random_rows, random_rows
from gpx.kernels.base import Kernel
from gpx.linalg import PivotedCholesky, pivoted_cholesky, randomly_pivoted_cholesky
from gpx.tensor_checks import check_at_least


class PivotSelector(Selector):
    """Pivots of a partial Cholesky factorisation of K_xx; a subclass chooses them.

    If the residual is exhausted before M points are found (repeated inputs, kernels of low rank)
    the rest is drawn uniformly from the other points.

    Args:
        max_candidates: with more data than this, choose among a uniform subset of this size;
            memory is (M + 64) x candidates numbers.
    """

    threshold = 0.0

    def __init__(self, max_candidates: int = 100_000) -> None:
        check_at_least(1, max_candidates=max_candidates)
        self.max_candidates = max_candidates

    @abstractmethod
    def _pivots(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> PivotedCholesky:
        """Factorisation of k(x, x) with at most ``num_inducing`` pivots."""

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        n = x.shape[0]
        size = max(self.max_candidates, num_inducing)
        candidates: Tensor | None = None
        inputs = x
        if n > size:
            candidates = random_rows(n, size, x, generator).sort().values
            inputs = x[candidates]
        done = self._pivots(inputs, kernel, num_inducing, generator)
        indices = done.pivots
        if not self.threshold:
            indices = fill_with_random_rows(indices, num_inducing, inputs, generator)
        if candidates is not None:
            indices = candidates[indices]
        return Selection(
            points=x[indices].clone(),
            indices=indices,
            informative=len(done.pivots),
            trace_error=float(done.residual.sum()),
        )


class GreedyConditionalVariance(PivotSelector):
    """Each new point is the training input of largest prior variance given those before.

    (Ties: lowest index.) Selections are nested in M. It minimises the *largest* conditional
    variance, while the loss of the evidence bound is their *sum*. Recommended where M points nearly
    determine the function (low dimension, long lengthscales) and for growing a set until it is
    certified. If M is far too small for that, the points lie at the edge of the data, where the
    variances are large but the data few, and even uniform draws lose less.

    Args:
        max_candidates: as in ``PivotSelector``.
        threshold: take a row only if its variance given the rows before (its novelty) is above
            this share of the largest k(x, x); the number of points follows, up to M. Zero: M.

    Cost: O(M) rows of the kernel matrix, n M^2 multiply-adds.
    Source: Burt thesis, section 3.1.2; Hultin 2017, section 2.3.2 (threshold).
    """

    def __init__(self, max_candidates: int = 100_000, threshold: float = 0.0) -> None:
        super().__init__(max_candidates)
        if not isinstance(threshold, int | float) or not 0.0 <= threshold < 1.0:
            raise ConfigError(f"threshold={threshold} is a share of k(x, x): choose 0 <= it < 1")
        self.threshold = threshold

    @property
    def may_choose_fewer(self) -> bool:
        """Whether there is a threshold."""
        return self.threshold > 0.0

    def _pivots(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> PivotedCholesky:
        diagonal = kernel.diagonal(x)
        return pivoted_cholesky(
            lambda rows: kernel.evaluate(x[rows], x),
            diagonal,
            num_inducing,
            largest=self.threshold * float(diagonal.max()) if self.threshold else 0.0,
        )


class SampledConditionalVariance(PivotSelector):
    """Each new point is drawn with probability proportional to its variance given those before.

    The first m of M points are a draw of size m. Unlike greedy points they follow the density of
    the data: a region counts by the total variance of its data, so that the sum over the data, the
    loss of the evidence bound, becomes small.

    Args:
        max_candidates: as in ``PivotSelector``.

    Guarantee: E tr(K_xx - Q_xx) <= (1 + e) times the sum of all but the r largest eigenvalues of
    K_xx once M >= r / e + r log(1 / (e t)), t that sum relative to tr K_xx.
    Cost: O(M) rows of the kernel matrix, n M^2 multiply-adds.
    Source: Chen, Epperly, Tropp and Webber 2023 (RPCholesky), theorem 3.1.
    """

    def _pivots(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> PivotedCholesky:
        return randomly_pivoted_cholesky(
            lambda rows: kernel.evaluate(x[rows], x),
            kernel.diagonal(x),
            num_inducing,
            generator=generator,
        )
