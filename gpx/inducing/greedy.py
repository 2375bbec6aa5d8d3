"""Greedy conditional variance: the next inducing point is where the others know least."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inducing.base import Selection, Selector, subset
from gpx.kernels.base import Kernel
from gpx.linalg.pivoted_cholesky import pivoted_cholesky


class GreedyConditionalVariance(Selector):
    """Pivots of the pivoted incomplete Cholesky factorisation of K_xx.

    Each new point is the training input of largest prior variance given the points chosen before
    (ties: lowest index), so selections are nested in M. When the residual is exhausted before M
    points were found (repeated inputs, kernels of low rank) the rest is drawn at random from the
    points not yet chosen.

    Args:
        max_candidates: with more data than this, choose among a uniform subset of this size;
            memory is (M + 64) x candidates numbers.

    Cost: O(M) rows of the kernel matrix, n M^2 multiply-adds.
    Source: Burt thesis, section 3.1.2.
    """

    def __init__(self, max_candidates: int = 100_000) -> None:
        if max_candidates < 1:
            raise ConfigError(f"max_candidates must be at least 1, got {max_candidates}")
        self.max_candidates = max_candidates

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        n = x.shape[0]
        size = max(self.max_candidates, num_inducing)
        candidates: Tensor | None = None
        inputs = x
        if n > size:
            candidates = subset(n, size, x, generator).sort().values
            inputs = x[candidates]
        done = pivoted_cholesky(
            lambda rows: kernel.evaluate(inputs[rows], inputs),
            kernel.diagonal(inputs),
            num_inducing,
        )
        indices = done.pivots
        informative = indices.shape[0]
        if informative < num_inducing:
            free = torch.ones(inputs.shape[0], dtype=torch.bool, device=x.device)
            free[indices] = False
            rest = free.nonzero().squeeze(1)
            drawn = subset(rest.shape[0], num_inducing - informative, x, generator)
            indices = torch.cat([indices, rest[drawn]])
        if candidates is not None:
            indices = candidates[indices]
        return Selection(
            points=x[indices].clone(),
            indices=indices,
            informative=informative,
            trace_error=float(done.residual.sum()),
        )
