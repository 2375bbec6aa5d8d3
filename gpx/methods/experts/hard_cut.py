"""Training of a mixture of experts: alternately assigns rows to experts and fits the experts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import NotPositiveDefinite
from gpx.inference.leave_one_out import LeftOut
from gpx.linalg import cholesky
from gpx.linalg.replayed import Replayed, solve_recordings
from gpx.methods.base.objective import Evidence
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.experts.evidence import CHOLESKY_HINT, experts_log_likelihood
from gpx.methods.experts.mixture import HardCutEvidence, MixtureOfExperts
from gpx.tensor_checks import check_at_least, check_not_negative


class HardCut(OwnSteps[MixtureOfExperts]):
    """Expectation maximisation with hard assignments; the evidence never decreases.

    A step moves rows to the experts under which they are most likely, then fits the
    hyperparameters. With fixed gates, moving one row n from expert a to b changes the evidence by
    the logarithm of the ratio of

        p(y_n | rows of b) g_b(x_n)   to   p(y_n | rows of a except n) g_a(x_n).

    The second is a leave-one-out density, read off the inverse of a's matrix. All rows that would
    gain are moved at once if that raises the evidence; otherwise the half that gains most is tried,
    and so on.

    Args:
        evaluations: most evaluations of the evidence and its gradient in a fit.
        least_rows: fewest rows that an expert keeps.
        tolerance: nats per row; training ends after a step that gains less.

    Cost: n^2 m multiply-adds for the predictions of all rows by experts of m rows, and the
    evaluations.
    Source: Tran thesis, section 2.5; leave-one-out densities from Rasmussen and Williams 2006,
    section 5.4.2.
    """

    unit = "rounds"
    purpose = "assigns rows to the experts of MixtureOfExperts models"
    model_type = MixtureOfExperts

    def __init__(
        self, evaluations: int = 20, least_rows: int = 10, tolerance: float = 1e-4
    ) -> None:
        check_at_least(1, evaluations=evaluations, least_rows=least_rows)
        check_not_negative(tolerance=tolerance)
        self.evaluations, self.least_rows, self.tolerance = evaluations, least_rows, tolerance
        self.objective = HardCutEvidence()

    def bind(self, model: MixtureOfExperts, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``."""
        self.model = model
        restored, self.restored = self.restored, False
        self.converged = restored and self.converged

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Assign the rows, then fit the hyperparameters."""
        before = self._value(x, y)
        assigned = self._assign(x, y, before)
        fitted = self._fit(x, y, assigned)
        self.converged = fitted - before <= self.tolerance * len(x)
        return self.final_evidence(x, y, generator=generator)

    @torch.no_grad()
    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """As in ``OwnSteps``."""
        return self.objective.evidence(self.model, x, y)

    def state_dict(self) -> dict[str, Any]:
        """Whether it has converged; the assignment belongs to the model."""
        return {"converged": self.converged}

    def load_state_dict(self, state: Any) -> None:
        """Restore ``state_dict``; those of earlier versions are empty."""
        self.converged, self.restored = bool(state.get("converged", False)), True

    @torch.no_grad()
    def _value(self, x: Tensor, y: Tensor) -> float:
        return float(self.objective.evidence(self.model, x, y).value)

    def _assign(self, x: Tensor, y: Tensor, before: float) -> float:
        """Move rows that gain, as many at once as raise the evidence; returns the evidence then."""
        if len(self.model.sizes) == 1:
            return before
        labels = self.model.labels
        target, gain = self._moves(x, y)
        order = torch.argsort(gain, descending=True, stable=True)
        count = int((gain > 0.0).sum())
        while count:
            rows = order[:count]
            proposed = labels.clone()
            proposed[rows] = target[rows]
            sizes = torch.bincount(proposed, minlength=len(self.model.sizes))
            if int(sizes.min()) >= min(self.least_rows, int(self.model.sizes.min())):
                self.model.assign(proposed)
                try:
                    value = self._value(x, y)
                except NotPositiveDefinite:
                    value = -math.inf
                if value > before:
                    return value
                self.model.assign(labels)
            count //= 2
        return before

    @torch.no_grad()
    def _moves(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Best other expert of every row (n,), and the gain of moving only that row there (n,)."""
        posterior = self.model.condition(x, y)
        mean, variance = posterior.components(x)
        every = torch.arange(len(self.model.sizes), device=x.device)
        variance = variance + posterior.parts.noise(every).unsqueeze(1)
        gates = self.model.gates(x).log_joint(x)
        score = gates + LeftOut(y - mean, variance).log_density()
        labels = self.model.labels.unsqueeze(0)
        own = gates.gather(0, labels).squeeze(0) + self._leave_one_out(x, y)
        score.scatter_(0, labels, -math.inf)
        best, target = score.max(0)
        return target, best - own

    def _leave_one_out(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y_n | the other rows of its expert) of every row (n,)."""
        parts, found = self.model.parts, torch.empty_like(y)
        for batch in self.model.expert_rows(x).batches(x.element_size(), self.model.batch_bytes):
            inputs = x[batch.rows]
            matrices = parts.covariances(batch.experts, inputs)
            system = batch.covariance(matrices, parts.noise(batch.experts))
            name = f"the kernel matrix of an expert of {system.shape[-1]} rows"
            factor, _ = cholesky(system, name=name, ladder=(0.0,), hint=CHOLESKY_HINT)
            gap = batch.zero_padding(y[batch.rows] - parts.means(batch.experts, inputs))
            value = LeftOut.of(factor, gap).log_density()
            real = slice(None) if batch.mask is None else batch.mask
            found[batch.rows[real]] = value[real]
        return found

    def _fit(self, x: Tensor, y: Tensor, before: float) -> float:
        """Fit hyperparameters by L-BFGS, undone if the evidence falls; returns the evidence.

        The optimiser runs on the CPU, on one vector of all hyperparameters: an evaluation is one
        transfer each way, and on a GPU a recording is replayed for it.
        """
        parameters = [p for group in self.model.parameter_groups().values() for p in group]
        parameters = [p for p in parameters if p.requires_grad]
        if not parameters:  # only the assignment is to be found
            return before
        parts, rows = self.model.parts, self.model.expert_rows(x)
        batches = list(rows.batches(x.element_size(), self.model.batch_bytes))
        assignment = self.model.log_assignment(x).detach()

        def evaluate(assignment: Tensor) -> Tensor:
            """Loss, and its derivatives by all hyperparameters, (1 + P,)."""
            value, _ = experts_log_likelihood(parts, batches, x, y)
            loss = -(value + assignment) / len(x)
            slopes = torch.autograd.grad(loss, parameters, materialize_grads=True)
            together = [part.detach().reshape(-1).double() for part in (loss, *slopes)]
            return torch.cat(together)

        def move(point: Tensor) -> None:
            pieces = point.detach().to(x.device).split([p.numel() for p in parameters])
            with torch.no_grad():
                for parameter, piece in zip(parameters, pieces, strict=True):
                    parameter.copy_(piece.view_as(parameter))

        recorded = Replayed(evaluate, solve_recordings().record if x.is_cuda else None)
        start = torch.cat([p.detach().reshape(-1) for p in parameters]).cpu()
        point = nn.Parameter(start.clone())
        optimizer = torch.optim.LBFGS(
            [point],
            max_iter=self.evaluations,
            max_eval=self.evaluations,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            move(point)
            try:
                found = recorded(assignment).cpu()
            except NotPositiveDefinite:  # a large loss makes the line search step back
                point.grad = torch.zeros_like(point)
                return torch.tensor(1e3 + abs(before), dtype=torch.float64)
            point.grad = found[1:].to(point.dtype)
            return found[0]

        with torch.enable_grad():
            optimizer.step(loss)
        recorded.release()
        move(point)
        try:
            after = self._value(x, y)
        except NotPositiveDefinite:
            after = -math.inf
        if after >= before:
            return after
        move(start)
        return before
