"""The objective of SWSGP: expected log-likelihood less the mean divergence of what inputs see."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.lazy_rows import LazyRows
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.batch import Batch, batches_in_order, resolve_row_noise
from gpx.methods.base.objective import MAX_EVIDENCE_BATCHES, Evidence, Kind, Objective
from gpx.methods.base.step_count import StepCount
from gpx.methods.nearest.swsgp import LocalTerms
from gpx.tensor_checks import check_at_least, check_num_data

Scope = Literal["point", "batch", "independent"]
SCOPES = ("point", "batch", "independent")


@runtime_checkable
class Local(Protocol):
    """What the objective asks of a model: inputs that see a few of its inducing variables."""

    likelihood: Likelihood
    inducing: Tensor
    num_neighbours: int

    def nearest(self, x: Tensor) -> Tensor:
        """Numbers (b, H) of the inducing variables that inputs x (b, d) see."""

    def local_terms(self, x: Tensor, near: Tensor) -> LocalTerms:
        """q(f) at x (b, d) given those, and their divergence."""


class SWSGPObjective(StepCount, Objective[Local]):
    """(n / B) sum over the batch of E_q log p(y | f), less its mean of KL(q(u_I) || p(u_I)).

    **Not a bound of the evidence** where an input sees its own neighbours (``scope="point"``): each
    is charged one n-th of a local divergence, and the value exceeds the evidence by tens of nats
    for small H. It trains; it does not compare H, M or kernels. It is the bound, estimated without
    bias, where all inputs see all inducing points (H = M).

    Args:
        num_data: n.
        scope: whose neighbours an input sees. "point": its own. "batch": those of its batch, all of
            them (a bound for these sets if they did not depend on the batch). "independent": those
            of another batch, drawn independently: an unbiased estimate of a true bound, poor to
            train with when H is far below M.
        refresh: with inducing points that are not learned, steps after which the neighbours of all
            data are found anew; 0: once. A step then costs the same whatever M.

    Raises:
        ConfigError: sizes out of range, or an unknown scope.

    Cost: B H^3 operations a step, and B M kernel entries where Z is learned; memory n H for the
    table of neighbours where it is not (B M kernel entries, and no table, for rows in files).
    Source: Tran thesis, section 4.3 and algorithm 2.
    """

    batching = "minibatch"
    streams = True
    kind = "estimate"
    takes_row_noise = True
    models = (Local,)
    made_for = "SWSGP"
    data_sized: ClassVar[tuple[str, ...]] = ("table",)
    table: Tensor

    def __init__(self, num_data: int, scope: Scope = "point", refresh: int = 0) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data)
        check_at_least(0, refresh=refresh)
        if scope not in SCOPES:
            raise ConfigError(f"scope={scope}: expected one of {', '.join(SCOPES)}")
        self.total = num_data
        self.scope = scope
        self.refresh = refresh
        self.register_data_sized()
        self._x: Tensor | None = None

    def num_data(self, x: Tensor) -> int:
        """n, whatever the batch."""
        return self.total

    def prepare(
        self, model: Local, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Find the neighbours of all data, where inducing points are not learned.

        Of rows in files no table is kept: their neighbours are found batch by batch.
        """
        check_num_data(self.total, x)
        self._fill_table(model, x)

    def _fill_table(self, model: Local, x: Tensor) -> None:
        if isinstance(x, LazyRows):
            return
        if not model.inducing.requires_grad and self.scope == "point":
            self.table = model.nearest(x).int()

    def before_step(self, model: Local, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Remember where all the data are."""
        self._x = x

    def after_step(self, model: Local) -> None:
        """Find the neighbours anew where it is time."""
        if self.count_step(self.refresh) and self._x is not None:
            self._fill_table(model, self._x)

    def _near(
        self, model: Local, x: Tensor, rows: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """(B, H), or (1, h) when all of the batch see the same."""
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
            rows (b,): numbers of these rows among all, whose neighbours may be known already.
            noise: what is known of the noise of these rows; None: of all rows what the model knows.

        Raises:
            ConfigError: the model knows something of each row, and some came without.
        """
        noise = resolve_row_noise(model, noise, len(x), self.total)
        terms = model.local_terms(x, self._near(model, x, rows, generator))
        scale = self.total / x.shape[0]
        each = model.likelihood.expected_log_prob_of_rows(y, *terms.marginals, noise)
        fit, complexity = each.sum() * scale, terms.kl.mean()
        return Evidence(fit - complexity, self._kind(model), {"fit": fit, "complexity": complexity})

    def evidence_of(
        self, model: Local, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As in ``Objective``, of the rows that it holds."""
        x, y, rows, noise = batch
        return self.evidence(model, x, y, generator=generator, rows=rows, noise=noise)

    def _kind(self, model: Local) -> Kind:
        whole = model.num_neighbours == model.inducing.shape[0]
        return "unbiased" if whole or self.scope == "independent" else "estimate"

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
        """The objective over all data; for other scopes than "point" the mean over batches.

        Of rows in files that are more than a thousand batches it is the mean of so many, with its
        standard error in ``facts``: every row costs H^3 operations, and 10^7 of them take hours.
        """
        many = isinstance(x, LazyRows) and x.shape[0] > MAX_EVIDENCE_BATCHES * batch_size
        if self.scope != "point" or many:
            found = super().full_evidence(model, x, y, batch_size=batch_size, generator=generator)
            return replace(found, facts=found.facts | {"bound": False})
        fit = torch.zeros((), dtype=torch.float64, device=x.device)
        complexity = torch.zeros_like(fit)
        for rows_x, rows_y, _, noise in batches_in_order(model, x, y, batch_size):
            terms = model.local_terms(rows_x, model.nearest(rows_x))
            each = model.likelihood.expected_log_prob_of_rows(rows_y, *terms.marginals, noise)
            fit += each.sum().double()
            complexity += terms.kl.sum().double() / self.total
        whole = self._kind(model) == "unbiased"
        return Evidence(
            fit - complexity,
            "lower_bound" if whole else "estimate",
            {"fit": fit, "complexity": complexity},
            facts={"bound": whole},
        )
