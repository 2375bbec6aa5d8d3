"""Relevance vectors from mini-batches: one weight and its precision at a time, both optimal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpx.bases.dictionary import MAX_PRECISION
from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError
from gpx.methods.base.objective import Evidence, Kind
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.weight_space.group_solves import WeightGroup, fitted_values
from gpx.methods.weight_space.mean_field import MeanFieldWeights
from gpx.methods.weight_space.qsrvm import LEAST_NOISE, QSRVM, SMALLEST
from gpx.sampling.batches import Batches

DELAY = 10.0
"""Visits of a weight after which the average of its moment begins to forget more slowly."""


class RelevanceSteps(OwnSteps[QSRVM]):
    """Coordinate steps on a mini-batch for the mean-field relevance vector machine.

    Given all other weights, the bound as a function of weight i, its scale and its precision has
    its maximum in closed form. With a_i = phi_i^T phi_i / noise and b_i = phi_i^T (y - what the
    others fit) / noise it is s_i = a_i^2 / (b_i^2 - a_i) and mu_i = b_i / (s_i + a_i) where
    b_i^2 > a_i; elsewhere s_i is infinite, mu_i = 0 and the function is out. A step draws rows,
    evaluates the finite functions there and some others, and visits one after the other. b_i is an
    average over visits with weights (1 + t / 10)^-step_decay, so that the noise of the batches dies
    away, and with it the chance in the decision to be in or out; a_i is known from all data.
    Functions that are out fit nothing: what the weights fit at the rows is exact, nothing about it
    is sampled.

    The gradients of log s and mu have the same optimum and do not get there. Near zero the bound
    falls like sqrt(a_i) |mu_i|, which is less than the noise of a gradient of mu_i; and weight
    moves from one kernel function to the next, which overlaps it, along directions of almost no
    curvature. Of 500 functions on a noisy sinc AdaGrad keeps 161 after 4,000 steps, and would keep
    78 if its gradients were exact.

    The mean-field bound asks for fewer functions than the evidence does: on concrete it keeps 52 of
    927 at a test RMSE of 0.407, where the fixed-point sweeps, which solve groups of 250 weights
    jointly, end at 0.332. These steps are for data of which a pass is too dear.

    Args:
        rows: data rows per step; all where there are fewer.
        candidates: functions per step drawn from all of them.
        active: finite functions visited per step at most, drawn where there are more.
        step_decay: kappa in (1/2, 1], where averages converge (Robbins and Monro).
        learn_noise: move the noise variance towards the maximum of the bound.

    Raises:
        ConfigError: an option out of range; ``check`` says what does not fit the model.

    Cost per step: O(rows (k + candidates) d) for k finite functions and O(c^2 (rows + 1)) for the c
    that are visited, free of n; of m only in a few passes over tables of m numbers. The evidence at
    the end: O(n k d). State: 2 m numbers.
    Source: Tipping and Faul 2003 (the optimum of one precision); Hoffman et al. 2013 (averages of
    natural parameters); Evans and Nair 2020 (QSGP), section on the QSRVM.
    """

    unit = "relevance steps"
    purpose = "selects the kernel functions of QSRVM models"
    model_type = QSRVM

    def __init__(
        self,
        rows: int = 100,
        candidates: int = 50,
        active: int = 250,
        step_decay: float = 0.7,
        learn_noise: bool = True,
    ) -> None:
        if min(rows, candidates, active) < 1:
            raise ConfigError(
                f"rows={rows}, candidates={candidates} and active={active} must be at least 1"
            )
        if not 0.5 < step_decay <= 1.0:
            raise ConfigError(f"step_decay={step_decay}: averages converge for values in (0.5, 1]")
        self.num_rows = rows
        self.candidates = candidates
        self.active = active
        self.step_decay = step_decay
        self.learn_noise = learn_noise
        self.moment = torch.zeros(0, dtype=torch.float64)
        self.visits = torch.zeros(0, dtype=torch.int64)

    def check_fit(self, model: QSRVM, num_data: int) -> None:
        """As in ``OwnSteps``: q must be mean-field, and no fixed-point sweep may have run."""
        if type(model.family) is not MeanFieldWeights:
            raise ConfigError(
                f"optimizer={type(self).__name__}() visits single weights: it needs num_dense=0"
            )
        if model.sweeps:
            raise ConfigError(
                f"optimizer={type(self).__name__}() selects from the start and would undo the "
                f"fixed-point sweeps of sweeps={model.sweeps}: set sweeps=0, or use "
                "optimizer=FirstOrder() to go on from them"
            )

    @torch.no_grad()
    def bind(self, model: QSRVM, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``: every function starts out, at weight zero."""
        restored, self.restored = self.restored, False
        self.model = model
        self.freeze(model)
        self._batches = Batches(x.shape[0], self.num_rows, seed, x.device)
        square = model.num_data * model.basis.mean_column_square() * model.family.column_ratio
        self._square = square.detach().double().view(-1)
        if not restored:
            self.moment = torch.zeros_like(self._square)
            self.visits = torch.zeros(len(self.moment), dtype=torch.int64, device=x.device)
            model.family.mean.zero_()
            model.basis.log_precision.fill_(math.log(MAX_PRECISION))

    def max_steps(self, limit: int) -> int:
        """All that are asked for."""
        return limit

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Visit the finite functions and some others on the rows of ``step``.

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: of the functions; the rows follow from the seed of ``bind``.

        The estimate of the bound is that before the step, so that the rows are fresh.
        """
        chosen = self._batches.rows(step)
        rows, per_row = x[chosen], x.shape[0] / chosen.shape[0]
        finite = self._finite()
        fitted = self._group(finite).values(self._mean()[finite], rows)
        residual = y[chosen].double() - fitted
        misfit = per_row * residual.square().sum()
        evidence = self._evidence(misfit, x.shape[0], "estimate")
        self._visit(self._draw(finite, generator), rows, residual, per_row)
        if self.learn_noise and bool(self.visits.min() > 0):
            self._move_noise(misfit, x.shape[0], step)
        return evidence

    def _draw(self, finite: Tensor, generator: torch.Generator) -> Tensor:
        """Columns that a step visits, in random order, none twice."""
        m, device = len(self.moment), generator.device

        def some(size: int, most: int) -> Tensor:
            return torch.randperm(size, generator=generator, device=device)[:most]

        waiting = (self.visits.cpu() == 0).nonzero()[:, 0].to(device)
        if waiting.shape[0]:  # every function is seen once before any is drawn again
            others = waiting[some(waiting.shape[0], self.candidates)]
        else:
            others = some(m, self.candidates)
        known = finite.to(device)[some(finite.shape[0], self.active)]
        both = torch.cat((known, others)).unique()
        return both[some(both.shape[0], both.shape[0])].to(self.moment.device)

    @torch.no_grad()
    def _visit(self, columns: Tensor, rows: Tensor, residual: Tensor, per_row: float) -> None:
        """Each of ``columns`` at its optimum given the others, in turn.

        The products with the residual and among the columns are made at once; the turns work on
        them alone.
        """
        features = self._group(columns).evaluate(rows).double()  # (c, rows)
        gram = (features @ features.mT).cpu().numpy()
        product = (features @ residual).cpu().numpy()
        self.visits[columns] += 1
        rates = (1.0 + (self.visits[columns] - 1.0) / DELAY) ** -self.step_decay
        noise, largest = float(self.model.noise_variance), MAX_PRECISION
        mean, moment = self._mean()[columns].cpu().numpy(), self.moment[columns].cpu().numpy()
        square = (self._square[columns] / noise).tolist()
        precision = []
        for k, (rate, a) in enumerate(zip(rates.tolist(), square, strict=True)):
            seen = per_row * (product[k] + gram[k, k] * mean[k])
            moment[k] += rate * (seen - moment[k])
            b = moment[k] / noise
            excess = b * b - a
            s = min(max(a * a / excess, SMALLEST), largest) if excess > 0.0 else largest
            new = b / (s + a) if s < largest else 0.0
            if new != mean[k]:
                product -= (new - mean[k]) * gram[k]
                mean[k] = new
            precision.append(s)
        self.moment[columns] = torch.from_numpy(moment).to(self.moment)
        table = self.model.family.mean.view(-1)
        table[columns] = torch.from_numpy(mean).to(table)
        s_table = self.model.basis.log_precision.view(-1)
        s_table[columns] = torch.tensor(precision, dtype=torch.float64).log().to(s_table)

    def _move_noise(self, misfit: Tensor, n: int, step: int) -> None:
        """Towards (|y - Phi mu|^2 + tr(Phi Sigma Phi^T)) / n, by the rate of an average."""
        noise = float(self.model.noise_variance)
        finite = self._finite()
        s, a = self._precision()[finite], self._square[finite] / noise
        wanted = float(misfit + noise * (a / (s + a)).sum()) / n
        rate = (1.0 + step / DELAY) ** -self.step_decay
        moved = max(noise + rate * (wanted - noise), LEAST_NOISE)
        self.model.likelihood.noise_variance = self.model.noise_variance.new_tensor(moved)

    def _finite(self) -> Tensor:
        """Columns whose weights are not pinned at zero, (k,)."""
        return self.model.family.mean.view(-1).nonzero()[:, 0]

    def _mean(self) -> Tensor:
        return self.model.family.mean.detach().view(-1).double()

    def _precision(self) -> Tensor:
        return self.model.basis.precision_diagonal().detach().double()

    def _group(self, columns: Tensor) -> WeightGroup:
        return WeightGroup.of_columns(self.model.basis, columns)

    def _evidence(self, misfit: Tensor, n: int, kind: Kind) -> Evidence:
        """The bound for |y - Phi mu|^2, scales at their optimum: O(m)."""
        noise = self.model.noise_variance.detach().double()
        s, mean = self._precision(), self._mean()
        fit = -0.5 * (misfit / noise + n * (LOG_TWO_PI + noise.log()))
        complexity = (
            -0.5 * (s * mean.square()).sum() - 0.5 * (self._square / (noise * s)).log1p().sum()
        )
        return Evidence(fit + complexity, kind, {"fit": fit, "complexity": complexity})

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The bound on all data x (n, d), y (n,), exact; O(n k d) for k finite functions."""
        finite = self._finite()
        values = fitted_values([(self._group(finite), self._mean()[finite])], x)
        misfit = (y.double() - values).square().sum()
        return self._evidence(misfit, x.shape[0], "lower_bound")

    @property
    def outcome(self) -> str:
        """How many relevance vectors there are."""
        kept = self.model.basis.relevant().shape[0]
        return f"{kept} of {len(self.moment)} vectors"

    def state_dict(self) -> dict[str, Any]:
        """Averaged moments (m,) and visits (m,)."""
        return {"moment": self.moment, "visits": self.visits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.moment, self.visits = state["moment"], state["visits"]
        self.restored = True
