"""Greedy choice of inducing points by how well they explain the targets."""

from __future__ import annotations

import copy
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.inducing.base import Selection, TargetSelector, fill_with_random_rows, random_rows
from gpx.kernels.base import Kernel
from gpx.tensor_checks import check_at_least, check_one_of

Score = Literal["residual", "evidence"]

EXHAUSTED = 1e-10
"""A candidate is passed over if less than this share of its kernel column is not explained by the
points chosen before: the rest is rounding, and repeated inputs are such candidates."""


class GreedyRegression(TargetSelector):
    """Each new point is the training input that improves the subset of regressors most.

    "residual": it leaves the smallest residual sum of squares |y - K_xz a|^2, a by least squares
    (weighted by the noise where rows have their own). "evidence": it leaves the largest log
    evidence log N(y | 0, Q_xx + noise), which is that of SoR and DTC, at the current
    hyperparameters. (Ties: lowest index.) All candidates are scored at every step, and selections
    are nested in M. Points are chosen as long as they improve the objective by more than rounding:
    the evidence charges for every further point. The rest up to M are random rows.

    Points that explain the targets best at wrong hyperparameters may be the wrong ones after
    training; ``experiments/selectors`` shows how they fare.

    Args:
        score: see above.
        max_candidates: with more data than this, both the candidates and the rows that they have to
            explain are a uniform subset of this size; memory is its square and 2 M times it, in
            numbers of 8 bytes.

    Cost: the kernel matrix of the candidates and a product of it with a vector for every point.
    Source: Luo and Wahba (1997), hybrid adaptive splines; Smola and Bartlett (2001), sparse greedy
    Gaussian process regression; Rasmussen and Williams (2006), section 8.3.1.
    """

    def __init__(self, score: Score = "evidence", max_candidates: int = 5_000) -> None:
        check_one_of(get_args(Score), score=score)
        check_at_least(1, max_candidates=max_candidates)
        self.score, self.max_candidates = score, max_candidates

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        y, noise = self._targets(x)
        rows = torch.arange(len(x), device=x.device)
        size = max(self.max_candidates, num_inducing)
        if len(x) > size:
            rows = random_rows(len(x), size, x, generator).sort().values
        kernel = copy.deepcopy(kernel).double().requires_grad_(False)
        inputs = x[rows].double()
        chosen, left = self._greedy(
            kernel.evaluate(inputs, inputs), y[rows].double(), noise[rows].double(), num_inducing
        )
        indices = rows[fill_with_random_rows(chosen, num_inducing, inputs, generator)]
        return Selection(x[indices].clone(), indices, len(chosen), left)

    def _greedy(self, matrix: Tensor, y: Tensor, noise: Tensor, num: int) -> tuple[Tensor, float]:
        """Chosen columns of K (n, n) in their order, and the trace error that they leave.

        With R = K - Q and M the inverse of Q + noise (of the weighted least squares problem: what
        projects on its residuals), a new point j adds v v^T to Q, v = R_j / sqrt(R_jj), and takes
        z z^T from M, z = M v / sqrt(c + v^T M v), c = 1 (least squares: 0). The scores are
        functions of R_jj, R_j^T M y and R_j^T M R_j, which are updated with one product K z.
        """
        evidence = self.score == "evidence"
        c = 1.0 if evidence else 0.0
        weight = noise.reciprocal()
        n = len(y)
        factors = matrix.new_empty(2, num, n)
        free = torch.ones(n, dtype=torch.bool, device=y.device)
        variance = matrix.diagonal().clone()
        inner = torch.cat([(part.square() @ weight) for part in matrix.split(512)])
        slope = matrix @ (weight * y)
        variance_floor, inner_floor = EXHAUSTED * variance.max(), EXHAUSTED * inner
        least = 1e-12 * float(y.square() @ weight)
        chosen: list[int] = []
        while len(chosen) < num:
            v_past, z_past = factors[:, : len(chosen)]
            allowed = free & (variance > variance_floor) & (inner > inner_floor)
            gain = slope.square() / (c * variance + inner)
            if evidence:
                gain = gain - (inner / variance).log1p()
            best = int(gain.masked_fill_(~allowed, -torch.inf).argmax())
            if not float(gain[best]) > least:
                break
            v = matrix[best] - v_past[:, best] @ v_past
            v /= variance[best].sqrt()
            z = weight * v - (z_past @ v) @ z_past
            if not evidence:  # a second pass keeps projections orthogonal
                z -= (z_past @ (z * noise)) @ z_past
            s = v @ z if evidence else z @ (z * noise)
            root = (c + s).sqrt()
            z /= root
            factors[0, len(chosen)], factors[1, len(chosen)] = v, z
            chosen.append(best)
            free[best] = False
            drop = z @ y
            step = matrix @ z - (v_past @ z) @ v_past - v * (s / root)
            # step is R z after the change of R, whose columns lose v v_j
            inner += v * (v * s - 2.0 * root * (step + v * (s / root))) - step.square()
            slope -= v * (root * drop) + step * drop
            variance -= v.square()
            inner.clamp_(min=0.0)
            variance.clamp_(min=0.0)
        return torch.tensor(chosen, dtype=torch.long, device=y.device), float(variance.sum())
