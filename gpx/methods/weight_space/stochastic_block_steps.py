"""Block steps from mini-batches, at a cost independent of n and m."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.base.objective import Evidence
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.block_steps import BlockSteps
from gpx.methods.weight_space.cell_ascent import Averaging, natural_step, tracked_evidence
from gpx.methods.weight_space.qsgp import QSGP
from gpx.sampling.batches import Batches
from gpx.tensor_checks import check_at_least

logger = logging.getLogger(__name__)


class StochasticBlockSteps(BlockSteps):
    """Natural-gradient steps on blocks of weights, with new data rows in every round.

    A step needs Phi mu at its rows. Estimating it from a sample of weights would be too noisy for
    steps that are exact on their block. Here it is exact: rows are drawn once per round, and a
    round visits every active group once. The step of a group updates the fitted values at this
    round's rows by the change of its weights, and adds its new contribution to the fitted values at
    the next round's rows, which are complete when the round ends. This takes two products with the
    b columns of the group, independent of n and m.

    The number of active groups grows by the factor ``growth`` per round. V of G groups form a model
    with prior precision V / G S, as V b random functions would. At the t-th visit of a group, its
    natural parameters are averaged with weight rho = t^-step_decay on the new rows
    (``natural_step``). The likelihood counts for as many points as were seen so far, at most n.
    With step_decay = 1 the early rounds are Bayesian updates by one batch after the other.

    The precision of the last visit is the inverse of the stored covariance, so covariance_storage
    should be float32 or float64: rounding to float16 can change variances severalfold (``bind``
    warns).

    Args:
        rows: data rows per round.
        growth: factor > 1 by which the number of active groups grows per round.
        step_decay: kappa in (1/2, 1], for which the steps converge (Robbins and Monro).
        sweeps: most passes over all groups; ``max_steps`` of the trainer may end training earlier.
        evidence_rows: new rows for the final estimate of the bound.

    Raises:
        ConfigError: an option out of range.

    Cost per step: O(rows b^2 + b^3) time and O(rows + b^2) memory for groups of b columns,
    independent of n and m. The final estimate of the bound: O(evidence_rows m b).
    Source: Hoffman et al. 2013; blocks of Evans and Nair 2020 (QSGP).
    """

    def __init__(
        self,
        rows: int = 20_000,
        growth: float = 1.5,
        step_decay: float = 0.7,
        sweeps: float = 1000.0,
        evidence_rows: int = 2000,
    ) -> None:
        super().__init__(sweeps=sweeps, stand_in_groups=0)
        check_at_least(2, rows=rows, evidence_rows=evidence_rows)
        if not 1.0 < growth < math.inf or not 0.5 < step_decay <= 1.0:
            raise ConfigError(
                f"growth={growth} above 1, finite, and step_decay={step_decay} in "
                "(0.5, 1] are needed for the steps to converge"
            )
        self.num_rows = rows
        self.growth = growth
        self.step_decay = step_decay
        self.evidence_rows = evidence_rows
        self.next_fitted = torch.zeros(0, dtype=torch.float64)
        self._drawn: dict[int, Tensor] = {}

    def check_fit(self, model: QSGP, num_data: int) -> None:
        """As in ``BlockSteps``; also that there are enough rows for a round."""
        super().check_fit(model, num_data)
        if self.num_rows > num_data:
            raise ConfigError(
                f"rows={self.num_rows} is above the {num_data} training rows; "
                "lower it, or use optimizer=BlockSteps(), which takes all of them"
            )

    def bind(self, model: QSGP, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``.

        Raises:
            ConfigError: q was trained before, and this is no resumed run.
        """
        restored, self.restored = self.restored, False
        assert isinstance(model.family, BlockDiagonalWeights)
        if not restored and (model.family.covariance.roots or bool(model.family.mean.any())):
            raise ConfigError(
                f"optimizer={type(self).__name__}() starts from weights of zero and this model "
                "has been trained; resume its run, or train a new model"
            )
        self._attach(model)
        if self.family.covariance.storage == torch.float16:
            logger.warning(
                "covariance_storage=float16 is too coarse for %s, which inverts stored covariance "
                "blocks at every later visit: predictive variances may be off severalfold where "
                "the noise is small; use float32",
                type(self).__name__,
            )
        self.family.solved_only = True
        self._batches = Batches(x.shape[0], self.num_rows, seed, x.device)
        self._drawn = {}
        self._rounds = Rounds(self.family.cells.num_groups, self.growth)
        self._joined, self._columns, self._log_precision = 0, 0, 0.0
        while self._joined < self.family.cells.num_groups and self.family.is_solved(
            self.family.cells.group(self._joined)[0]
        ):
            self._join(self._joined)
        if not restored:
            self.fitted = torch.zeros(self.num_rows, dtype=torch.float64, device=x.device)
            self.next_fitted = torch.zeros_like(self.fitted)

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Step on the group of ``step``; returns an estimate of the bound afterwards.

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: unused; rows follow from the seed of ``bind``.

        The estimate uses the misfit at the rows of the round, on which q was just trained;
        ``final_evidence`` uses new rows.
        """
        cells, n = self.family.cells, x.shape[0]
        number, group = self._rounds.at(step)
        active, first = self._rounds.active(number), self._rounds.first_visit(group)
        chosen, following = self._rows(number), self._rows(number + 1)
        rows, residual = x[chosen], y[chosen].double() - self.fitted
        weights = self._weights(group, x)
        change = natural_step(
            self.family,
            group,
            weights,
            rows,
            residual,
            noise=self.model.noise_variance,
            num_data=n,
            averaging=Averaging(
                step=(number - first + 1) ** -self.step_decay,
                points=min(n, (number + 1) * self.num_rows),
                prior_scale=active / cells.num_groups,
                last_points=min(n, max(1, number) * self.num_rows),
                last_prior_scale=self._rounds.active(max(0, number - 1)) / cells.num_groups,
            ),
        )
        if group == self._joined:
            self._join(group)
        moved = weights.values(change, rows)
        self.misfit = float((residual - moved).square().mean()) * n
        self.fitted = self.fitted + moved
        self.next_fitted = self.next_fitted + weights.values(self._mean(group), x[following])
        if group == active - 1:  # ``next_fitted`` is complete
            self.fitted, self.next_fitted = self.next_fitted, torch.zeros_like(self.fitted)
        return self.evidence(n)

    def evidence(self, num_data: int) -> Evidence:
        """Estimate of the bound of the model of the active groups; O(cells)."""
        return tracked_evidence(
            self.family,
            self.misfit,
            float(self.model.noise_variance.detach()),
            num_data,
            self._log_precision,
            columns=self._columns,
            prior_scale=self._joined / self.family.cells.num_groups,
            kind="estimate",
        )

    def _join(self, group: int) -> None:
        """Add a group, visited for the first time, to the model whose bound is estimated."""
        for cell in self.family.cells.group(group):
            columns = self.family.cells.columns(cell, self.family.mean.device)
            self._columns += columns.shape[0]
            precision = self.basis.precision_diagonal(columns)
            self._log_precision += float(precision.double().log().sum())
        self._joined += 1

    def _rows(self, number: int) -> Tensor:
        """Rows of round ``number``."""
        if number not in self._drawn:
            self._drawn = {k: v for k, v in self._drawn.items() if k == number - 1}
            self._drawn[number] = self._batches.rows(number)
        return self._drawn[number]

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Unbiased estimate of the bound from new rows, with its standard error among the facts.

        n times the mean expected log density over uniformly drawn rows is unbiased; the rest of the
        bound is exact.

        Cost: O(evidence_rows m b) time.
        """
        n = x.shape[0]
        chosen = torch.randint(
            n, (self.evidence_rows,), generator=generator, device=generator.device
        ).to(x.device)
        mean, variance = self.model.condition(x[:1], y[:1]).predict(x[chosen])
        likelihood = self.model.likelihood
        each = n * likelihood.expected_log_prob_of_rows(y[chosen], mean, variance, None).double()
        error = float(each.std()) / self.evidence_rows**0.5
        expected, complexity = each.mean(), self.evidence(n).parts["complexity"]
        return Evidence(
            expected + complexity,
            "estimate",
            {"expected_log_density": expected, "complexity": complexity},
            facts={"evidence_standard_error": error, "evidence_rows": self.evidence_rows},
        )

    def state_dict(self) -> dict[str, Any]:
        """Fitted values at the rows of this and (incomplete) of the next round; the misfit."""
        return {**super().state_dict(), "next_fitted": self.next_fitted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        super().load_state_dict(state)
        self.next_fitted = state["next_fitted"]


class Rounds:
    """The group that each step visits: rounds over 1, growth, growth^2 ... and at last all groups.

    Args:
        num_groups: G.
        growth: > 1; every round has at least one group more than the last, until it has all.
    """

    def __init__(self, num_groups: int, growth: float) -> None:
        self._sizes = [1]
        while self._sizes[-1] < num_groups:
            last = self._sizes[-1]
            self._sizes.append(min(num_groups, max(last + 1, round(growth * last))))

    def active(self, number: int) -> int:
        """Groups that round ``number`` visits."""
        return self._sizes[min(number, len(self._sizes) - 1)]

    def first_visit(self, group: int) -> int:
        """The first round that visits ``group``."""
        return next(k for k, size in enumerate(self._sizes) if size > group)

    def at(self, step: int) -> tuple[int, int]:
        """Round and group of ``step``."""
        for number, size in enumerate(self._sizes[:-1]):
            if step < size:
                return number, step
            step -= size
        later, group = divmod(step, self._sizes[-1])
        return len(self._sizes) - 1 + later, group
