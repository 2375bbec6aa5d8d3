"""Greedy choice of a subset of data, as in the informative vector machine."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import DataError
from gpx.inducing.base import Selection, TargetSelector, random_rows
from gpx.kernels.base import Kernel
from gpx.tensor_checks import check_at_least, check_one_of

Score = Literal["entropy", "information_gain"]


class InformativeVectors(TargetSelector):
    """Greedy choice of rows by noise and targets, made for a subset of data.

    Each new row has the best score under the posterior given the rows before: "entropy", the
    decrease of its posterior entropy, log(1 + v / s) / 2 (the row of largest posterior variance;
    independent of the targets); "information_gain", the divergence of its new posterior from the
    old one, which also depends on how surprising the target is.

    Args:
        score: see above.
        max_candidates: with more data than this, choose among a uniform subset of this size;
            memory is (M + 4) x candidates numbers.

    Cost: M rows of the kernel matrix, n M^2 / 2 multiply-adds.
    Source: Lawrence, Seeger and Herbrich (2003); Seeger, Williams and Lawrence (2003).
    """

    def __init__(self, score: Score = "entropy", max_candidates: int = 20_000) -> None:
        check_one_of(get_args(Score), score=score)
        check_at_least(1, max_candidates=max_candidates)
        self.score, self.max_candidates = score, max_candidates

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        residual, noise = self._targets(x)
        rows = self.rows(x, residual, kernel, noise, num_inducing, generator=generator)
        return Selection(x[rows].clone(), rows)

    @torch.no_grad()
    def rows(
        self,
        x: Tensor,
        residual: Tensor,
        kernel: Kernel,
        noise: Tensor,
        num: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Indices (num,) of the chosen rows, in the order of choice. Ties: lowest index.

        Args:
            x (n, d), residual (n,): inputs, y - m(x).
            kernel, noise () or (n,): at their current hyperparameters, of all rows or of each.
            num: M, at most n.
            generator: of the subset of candidates.

        Raises:
            DataError: fewer data than ``num``.
        """
        n = len(x)
        if num > n:
            raise DataError(
                f"{num} rows were asked for but there are only {n} training points; ask for {n} or "
                "less, or use an exact Gaussian process"
            )
        noise = noise.expand(n)
        if n > max(self.max_candidates, num):
            among = random_rows(n, max(self.max_candidates, num), x, generator).sort().values
            found = self.rows(x[among], residual[among], kernel, noise[among], num)
            return among[found]
        variance, mean = kernel.diagonal(x).clone(), torch.zeros_like(residual)
        factor = x.new_empty(num, n)
        chosen = torch.empty(num, dtype=torch.long, device=x.device)
        free = torch.ones(n, dtype=torch.bool, device=x.device)
        for step in range(num):
            scores = self._scores(variance, residual - mean, noise)
            scores.masked_fill_(~free, -torch.inf)
            best = scores.argmax().reshape(1)
            chosen[step : step + 1] = best
            free[best] = False
            past = factor[:step]
            row = kernel.evaluate(x[best], x).squeeze(0) - past[:, best].squeeze(1) @ past
            deviation = (variance[best] + noise[best]).sqrt()
            row = torch.div(row, deviation, out=factor[step])
            surprise = (residual[best] - mean[best]) / deviation
            variance = (variance - row.square()).clamp_(min=0.0)
            mean += row * surprise
        return chosen

    def _scores(self, variance: Tensor, gap: Tensor, noise: Tensor) -> Tensor:
        """(n,), in nats."""
        if self.score == "entropy":
            return 0.5 * (variance / noise).log1p()
        total = variance + noise
        shrunk = noise / total  # v_new / v
        return 0.5 * (shrunk - 1.0 - shrunk.log() + variance * (gap / total).square())
