"""The bound of the variational nearest-neighbour process, from mini-batches of rows."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.nearest.vnngp import RowTerms
from gpx.tensor_checks import check_at_least, check_num_data


@runtime_checkable
class ByRows(Protocol):
    """What the bound asks of a model: its terms, by rows of the training data."""

    likelihood: Likelihood
    inducing: Tensor

    def row_terms(self, rows: Tensor) -> RowTerms:
        """q(f) at rows (b,) of the data and the divergence that each adds."""


class VNNGPELBO(Objective[ByRows]):
    """(n / B) sum over the batch of E_q log p(y_j | f_j) - E_q KL(q(u_j) || p(u_j | u_N(j))).

    Kind: over uniformly drawn batches an unbiased estimate of a lower bound of the evidence of the
    model's own, nearest-neighbour process. With respect to the process that was asked for it is an
    estimate, and said to be one; the two are the same where every row is given all before it.

    Args:
        num_data: n.

    Cost: O(B k^3) a step.
    Source: Wu, Pleiss and Cunningham 2022, section 3.
    """

    batching = "minibatch"
    kind = "estimate"
    models = (ByRows,)
    made_for = "VNNGP"

    def __init__(self, num_data: int) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data)
        self.total = num_data
        self._rows: Tensor | None = None

    def num_data(self, x: Tensor) -> int:
        """n, whatever the batch."""
        return self.total

    def prepare(
        self, model: ByRows, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Check that there are as many data as it was told."""
        check_num_data(self.total, x)

    def before_step(self, model: ByRows, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Remember which rows the batch is of: inducing values are theirs."""
        self._rows = rows

    def evidence(
        self, model: ByRows, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Bound with parts ``fit`` (expected log-likelihood) and ``complexity`` (divergence).

        Raises:
            ConfigError: it was not told which rows of the training data these are.
        """
        rows, self._rows = self._rows, None
        if rows is None and len(x) == self.total:
            rows = torch.arange(self.total, device=x.device)
        if rows is None or len(rows) != len(x):
            raise ConfigError(
                "VNNGPELBO has to know which rows of the training data a batch holds: call "
                "before_step(model, x, y, rows) with all data first"
            )
        return self._of_rows(model, rows, y)

    def _of_rows(self, model: ByRows, rows: Tensor, y: Tensor) -> Evidence:
        terms = model.row_terms(rows)
        scale = self.total / len(rows)
        fit = model.likelihood.expected_log_prob(y, *terms.marginals).sum() * scale
        complexity = terms.kl.sum() * scale
        return Evidence(fit - complexity, self.kind, {"fit": fit, "complexity": complexity})

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
        """The bound itself, streamed over all rows, at the q(u) that was trained."""
        parts = {name: torch.zeros((), dtype=torch.float64) for name in ("fit", "complexity")}
        for rows in torch.arange(len(x), device=x.device).split(batch_size):
            found = self._of_rows(model, rows, y[rows])
            for name, part in found.parts.items():
                parts[name] = parts[name].to(part.device) + part.double() * len(rows) / self.total
        return Evidence(parts["fit"] - parts["complexity"], self.kind, parts)
