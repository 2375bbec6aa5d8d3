"""The objective of SWSGP: expected log likelihood minus the mean of local divergences."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from gpx.lazy_rows import LazyRows
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.batch import Batch, batches_in_order, resolve_row_noise
from gpx.methods.base.objective import MAX_EVIDENCE_BATCHES, Evidence, Kind, Objective
from gpx.methods.base.step_count import StepCount
from gpx.methods.nearest.swsgp import LocalTerms
from gpx.tensor_checks import check_at_least, check_num_data, check_one_of

Scope = Literal["point", "batch", "independent"]

SEARCH_BYTES = 2**26
"""Memory of the neighbours that are found at once for the evidence of all rows."""


@runtime_checkable
class Local(Protocol):
    """What ``SWSGPObjective`` requires of a model."""

    likelihood: Likelihood
    inducing: Tensor
    num_neighbours: int

    def nearest(self, x: Tensor) -> Tensor:
        """Indices (b, H) of the nearest inducing variables of inputs x (b, d)."""

    def local_terms(self, x: Tensor, near: Tensor) -> LocalTerms:
        """q(f) at x (b, d) from these, and their divergence."""


class SWSGPObjective(StepCount, Objective[Local]):
    """(n / B) sum over the batch of E_q log p(y | f), minus the batch mean of KL(q(u_I) || p(u_I)).

    A row of weight w counts as w rows in both.

    **Not a bound on the evidence** if every input uses its own neighbours (``scope="point"``): each
    contributes only 1 / n of its local divergence, and for small H the value exceeds the evidence
    by tens of nats. Use it for training, not to compare H, M or kernels. With H = M it is an
    unbiased estimate of the evidence lower bound.

    Args:
        num_data: n.
        scope: whose neighbours an input uses. "point": its own. "batch": those of all inputs of its
            batch (a bound, if the set did not depend on the batch). "independent": those of another
            batch, drawn independently; an unbiased estimate of a true bound, but poor for training
            if H is far below M.
        refresh: if inducing points are not learned, number of steps after which the neighbours of
            all data are searched again; 0: only once. The cost of a step is then independent of M.

    Raises:
        ConfigError: sizes out of range, or an unknown scope.

    Cost: B H^3 operations per step, plus B M kernel entries if Z is learned; otherwise memory n H
    for the table of neighbours (for rows in files no table, but B M kernel entries).
    Source: Tran thesis, section 4.3 and algorithm 2.
    """

    batching = "minibatch"
    fixed_total = True
    streams = True
    kind = "estimate"
    takes_row_noise = True
    needs_rows = True
    models = (Local,)
    made_for = "SWSGP"
    data_sized: ClassVar[tuple[str, ...]] = ("table",)
    table: Tensor

    def __init__(self, num_data: int, scope: Scope = "point", refresh: int = 0) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data)
        check_at_least(0, refresh=refresh)
        check_one_of(get_args(Scope), scope=scope)
        self.total = num_data
        self.scope = scope
        self.refresh = refresh
        self.register_data_sized()
        self._x: Tensor | None = None

    @property
    def fixed_shapes(self) -> bool:  # type: ignore[override]
        """Whether every step runs the same operations: with neighbours of each input alone."""
        return self.scope == "point"

    def prepare(
        self, model: Local, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Find the neighbours of all data, if inducing points are not learned.

        For rows in files no table is stored: neighbours are found batch by batch.
        """
        check_num_data(self.total, x)
        self._x = x
        self._fill_table(model, x)

    def _fill_table(self, model: Local, x: Tensor) -> None:
        if isinstance(x, LazyRows):
            return
        # an optimiser may hold points for some steps that are trained later
        learned = getattr(model, "learn_inducing", model.inducing.requires_grad)
        if not learned and self.scope == "point":
            found = model.nearest(x).int()
            if self.table.shape == found.shape:
                self.table.copy_(found)  # in place, for recorded steps
            else:
                self.table = found

    def before_step(self, model: Local, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Keep a reference to all data, for ``after_step``."""
        self._x = x

    def after_step(self, model: Local) -> None:
        """Search the neighbours again every ``refresh`` steps."""
        if self.count_step(self.refresh) and self._x is not None:
            self._fill_table(model, self._x)

    def _near(
        self, model: Local, x: Tensor, rows: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """Indices of inducing points: (B, H), or (1, h) if the whole batch uses the same."""
        if self.scope == "independent":
            data = x if self._x is None else self._x
            drawn = torch.randint(len(data), (len(x),), generator=generator, device=x.device)
            return model.nearest(data[drawn]).unique()[None]
        if rows is not None and self.table.numel():
            return self.table[rows].long()
        near = model.nearest(x)
        return near.unique()[None] if self.scope == "batch" else near

    def evidence(
        self,
        model: Local,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        rows: Tensor | None = None,
        noise: RowNoise | None = None,
    ) -> Evidence:
        """Value with parts ``fit`` (expected log-likelihood) and ``complexity`` (mean KL).

        Args:
            rows (b,): indices of these rows in the training data, for the table of neighbours.
            noise: what is known of the noise of these rows; None: of all rows what the model knows.

        Raises:
            ConfigError: the model knows something of each row, and some came without.
        """
        noise = resolve_row_noise(model, noise, len(x), self.total)
        terms = model.local_terms(x, self._near(model, x, rows, generator))
        scale = self.total / x.shape[0]
        each = model.likelihood.expected_log_prob_of_rows(y, *terms.marginals, noise)
        fit, complexity = each.sum() * scale, self._mean_divergence(model, terms.kl, noise)
        return Evidence(
            fit - complexity, self._kind(model, x), {"fit": fit, "complexity": complexity}
        )

    def _mean_divergence(self, model: Local, kl: Tensor, noise: RowNoise | None) -> Tensor:
        """The mean () of divergences kl (b,), or (1,) if all rows share one, over rows so weighed.

        Weights are relative to their mean over all rows that the model knows, so that the mean of
        a batch is unbiased.
        """
        if noise is None or len(kl) != len(noise.relative):
            return kl.mean()
        known: RowNoise = getattr(model, "row_noise", None) or noise
        return (kl / noise.relative.to(kl)).mean() / known.relative.to(kl).reciprocal().mean()

    def evidence_of(
        self, model: Local, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As in ``Objective``."""
        x, y, rows, noise = batch
        return self.evidence(model, x, y, generator=generator, rows=rows, noise=noise)

    def _kind(self, model: Local, x: Tensor) -> Kind:
        whole = model.num_neighbours == model.inducing.shape[0]
        # neighbours of the same few rows depend on them
        apart = self._x is not None or len(x) == self.total
        return "unbiased" if whole or (self.scope == "independent" and apart) else "estimate"

    @torch.no_grad()
    def full_evidence(
        self,
        model: Local,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """The objective over all data; for scopes other than "point", its mean over batches.

        For rows in files with more than a thousand batches it is the mean over a thousand of them,
        with its standard error in ``facts``, since every row costs H^3 operations.
        """
        self._x = x
        many = isinstance(x, LazyRows) and x.shape[0] > MAX_EVIDENCE_BATCHES * batch_size
        if self.scope != "point" or many:
            found = super().full_evidence(model, x, y, batch_size=batch_size, generator=generator)
            return replace(found, facts=found.facts | {"bound": False})
        fit = torch.zeros((), dtype=torch.float64, device=x.device)
        complexity = torch.zeros_like(fit)
        at_once = SEARCH_BYTES // (8 * model.num_neighbours * batch_size)
        searched: list[Tensor] = []
        for number, (rows_x, rows_y, _, noise) in enumerate(
            batches_in_order(model, x, y, batch_size)
        ):
            if isinstance(x, LazyRows):  # not read ahead
                near = model.nearest(rows_x)
            else:
                if not searched:  # for many batches: a search may make a tree of all Z
                    ahead = slice(number * batch_size, (number + max(1, at_once)) * batch_size)
                    searched = list(model.nearest(x[ahead]).split(batch_size))
                near = searched.pop(0)
            terms = model.local_terms(rows_x, near)
            each = model.likelihood.expected_log_prob_of_rows(rows_y, *terms.marginals, noise)
            fit += each.sum().double()
            share = len(rows_y) / self.total
            complexity += share * self._mean_divergence(model, terms.kl, noise).double()
        whole = self._kind(model, x) == "unbiased"
        return Evidence(
            fit - complexity,
            "lower_bound" if whole else "estimate",
            {"fit": fit, "complexity": complexity},
            facts={"bound": whole},
        )
