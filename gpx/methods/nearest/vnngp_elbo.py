"""The evidence bound of the variational nearest-neighbour process, from mini-batches."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.batch import Batch, batches_in_order, resolve_row_noise
from gpx.methods.base.objective import Evidence, Kind, Objective
from gpx.methods.base.step_count import StepCount
from gpx.methods.nearest.vnngp import RowTerms
from gpx.tensor_checks import check_at_least, check_num_data


@runtime_checkable
class ByRows(Protocol):
    """What ``VNNGPELBO`` requires of a model."""

    likelihood: Likelihood
    inducing: Tensor
    computes_best_q: bool

    def row_terms(self, rows: Tensor) -> RowTerms:
        """q(f) at rows (b,) of the data, and the divergence of each."""

    def fit_variational(self, x: Tensor, y: Tensor) -> bool:
        """Set q(u) to the optimal one, if that can be computed."""


class VNNGPELBO(StepCount, Objective[ByRows]):
    """(n / B) sum over the batch of E_q log p(y_j | f_j) - E_q KL(q(u_j) || p(u_j | u_N(j))).

    Kind: "estimate". Over uniformly drawn batches it is an unbiased estimate of a lower bound on
    the evidence of the nearest-neighbour process, which only approximates that of the exact
    Gaussian process; the two are equal if every row conditions on all rows before it.

    Args:
        num_data: n.
        refresh: if the optimal q(u) can be computed, number of steps after which q(u) is set to it
            again; 0: never. Without this q(u) lags behind the hyperparameters and slows them
            down.

    Raises:
        ConfigError: sizes out of range.

    Cost: O(B k^3) per step; O(n k^3) every ``refresh`` steps.
    Source: Wu, Pleiss and Cunningham 2022, section 3.
    """

    gradient_of_inputs = False
    batching = "minibatch"
    fixed_total = True
    kind: ClassVar[Kind] = "estimate"
    takes_row_noise = True
    fixed_shapes = True
    needs_rows = True
    elbo = True
    models = (ByRows,)
    made_for = "VNNGP"

    def __init__(self, num_data: int, refresh: int = 100) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data)
        check_at_least(0, refresh=refresh)
        self.total = num_data
        self.refresh = refresh

    def prepare(
        self, model: ByRows, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Check that there are ``num_data`` rows."""
        check_num_data(self.total, x)

    def before_step(self, model: ByRows, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Refit q(u) every ``refresh`` steps; a refit that does not converge still helps."""
        if self.count_step(self.refresh) and model.computes_best_q:
            model.fit_variational(x, y)

    def evidence(
        self,
        model: ByRows,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        rows: Tensor | None = None,
        noise: RowNoise | None = None,
    ) -> Evidence:
        """Bound with parts ``fit`` (expected log-likelihood) and ``complexity`` (divergence).

        Args:
            rows (b,): indices of these rows in the training data; None: all rows.
            noise: what is known of the noise of these rows; None: of all rows what the model knows.

        Raises:
            ConfigError: some rows, without their numbers, or without their noise where the model
                knows something of each row.
        """
        if rows is None and len(x) == self.total:
            rows = torch.arange(self.total, device=x.device)
        if rows is None or len(rows) != len(x):
            raise ConfigError(
                "VNNGPELBO has to know which rows of the training data a batch holds: give their "
                "numbers as rows="
            )
        noise = resolve_row_noise(model, noise, len(x), self.total)
        terms = model.row_terms(rows)
        scale = self.total / len(rows)
        each = model.likelihood.expected_log_prob_of_rows(y, *terms.marginals, noise)
        fit, complexity = each.sum() * scale, terms.kl.sum() * scale
        return Evidence(fit - complexity, self.kind, {"fit": fit, "complexity": complexity})

    def evidence_of(
        self, model: ByRows, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As in ``Objective``."""
        return self.evidence(model, batch.x, batch.y, rows=batch.rows, noise=batch.noise)

    @torch.no_grad()
    def full_evidence(
        self,
        model: ByRows,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The bound over all rows, in batches, at the trained q(u)."""
        parts = {name: torch.zeros((), dtype=torch.float64) for name in ("fit", "complexity")}
        for batch in batches_in_order(model, x, y, batch_size):
            share = len(batch.x) / self.total
            for name, part in self.evidence_of(model, batch).parts.items():
                parts[name] = parts[name].to(part.device) + part.double() * share
        return Evidence(parts["fit"] - parts["complexity"], self.kind, parts)
