"""What the posteriors of experts share: rows as state, and factors made when they are asked for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from gpx.backends import row_chunks
from gpx.constraints import natural_parameters
from gpx.inducing.partition import Regions
from gpx.inference.exact_solver import require_finite
from gpx.inference.padded_rows import batch_bytes
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.posterior import Marginals, Posterior
from gpx.methods.experts.members import BaseExpert, Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.rows import ExpertBatch, ExpertRows

MOST_ROWS = 2048
"""Test points that are predicted at a time, at most."""


class PartsPosterior(Posterior):
    """Holds copies of what experts are made of.

    Args:
        parts: kernel, mean function and noise of the experts; copied.
        budget: bytes that factors and covariances may take.

    Attributes:
        inputs (n, d): training inputs.
        jitter: largest that was added to a diagonal so far.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs",)
    inputs: Tensor

    def __init__(self, parts: ExpertParts, budget: int) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(parts.kernel).requires_grad_(False)
        self.mean = copy.deepcopy(parts.mean).requires_grad_(False)
        self.likelihood = copy.deepcopy(parts.likelihood).requires_grad_(False)
        self.own = copy.deepcopy(parts.own)
        if self.own is not None:
            self.own.requires_grad_(False)
        self.budget = budget
        self.jitter = 0.0
        self.register_data_sized()

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: those of the training data."""
        return self.inputs.shape[1] if self.inputs.ndim == 2 else None

    @property
    def parts(self) -> ExpertParts:
        """What the experts are made of."""
        return ExpertParts(self.kernel, self.mean, self.likelihood, self.own)

    def own_hyperparameters(self) -> dict[str, Tensor] | None:
        """As in ``Posterior``: of every expert, (K, ...) each."""
        if self.own is None:
            return None
        found: dict[str, list[Tensor]] = {}
        for number in range(self.own.num_experts):
            for part, module in self.parts.of_expert(number).named().items():
                for name, value in natural_parameters(module).items():
                    found.setdefault(f"{part}.{name}", []).append(value)
        return {name: torch.stack(values) for name, values in found.items()}

    def latent(self, members: Members, x: Tensor) -> Marginals:
        """Mean and variance (c, t) of the latent functions of experts at points of their own.

        Args:
            members: experts that start from the prior.
            x (c, t, d).
        """
        experts = members.batch.experts
        cross = members.given(self.parts.covariances(experts, members.inputs, x))
        prior = self.parts.variances(experts, x)
        found = members.predict(cross, Marginals(torch.zeros_like(prior), prior), prior)
        return Marginals(found.mean + self.parts.means(experts, x), found.variance)


class RegionsPosterior(PartsPosterior):
    """A point takes the hyperparameters of the expert whose centre is nearest.

    Args:
        parts, budget: as in ``PartsPosterior``.
        regions: the centres of the experts; copied.
    """

    def __init__(self, parts: ExpertParts, budget: int, regions: Regions) -> None:
        super().__init__(parts, budget)
        self.regions = copy.deepcopy(regions)

    @torch.no_grad()
    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """As in ``Posterior``; experts with hyperparameters of their own have their own noise."""
        if self.own is None:
            return super().predictive(x, likelihood)
        mean, variance = self.predict(x)
        return Normal(mean, (variance + self.parts.noise(self.regions.nearest(x))).sqrt())

    @property
    def has_own_noise(self) -> bool:
        """As in ``Posterior``: where experts have hyperparameters of their own."""
        return self.own is not None


class ExpertsPosterior(PartsPosterior):
    """K exact Gaussian processes given their rows.

    Its state is the training inputs and residuals, one expert after the other, and hyperparameters.
    Factors of the experts are made at the first prediction, and kept where half of the budget holds
    them.

    Args:
        parts, budget: as in ``PartsPosterior``.

    Attributes:
        residual (n,): targets less the expert's prior mean.
        sizes (K,): rows of every expert.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs", "residual", "sizes")
    derived: ClassVar[tuple[str, ...]] = ("_kept",)
    residual: Tensor
    sizes: Tensor

    def __init__(self, parts: ExpertParts, budget: int) -> None:
        super().__init__(parts, budget)
        self._kept: tuple[BaseExpert | None, list[Members]] | None = None

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor, rows: ExpertRows) -> None:
        """Take in the rows of every expert; raises DataError for targets that are not finite."""
        residual = y.new_empty(len(rows.rows))
        position = ExpertRows(torch.arange(len(rows.rows), device=x.device), rows.sizes)
        inputs = x[rows.rows]
        for batch in position.batches(x.element_size(), self.budget):
            gap = y[rows.rows[batch.rows]] - self.parts.means(batch.experts, inputs[batch.rows])
            residual[batch.rows] = gap  # padding repeats a row, and its value
        self.keep(x, inputs=inputs, residual=residual)
        self.sizes = rows.sizes.clone()
        require_finite(self.residual)
        self._kept = None

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {
            "num_experts": len(self.sizes),
            "largest_expert": int(self.sizes.max()),
            "jitter": self.jitter,
        }

    def base(self) -> BaseExpert | None:
        """The expert that the others start from; None: they start from the prior."""
        return None

    def expert_rows(self) -> ExpertRows:
        """Places in ``inputs`` of the rows of every expert that is not the base."""
        return ExpertRows(torch.arange(len(self.inputs), device=self.inputs.device), self.sizes)

    def experts(self) -> tuple[BaseExpert | None, Iterator[Members]]:
        """The base and the others: from before, or made anew (and kept where they fit)."""
        if self._kept is not None:
            return self._kept[0], iter(self._kept[1])
        base = self.base()

        def made() -> Iterator[Members]:
            kept: list[Members] | None = []
            held = 0
            for batch in self.expert_rows().batches(self.inputs.element_size(), self.budget // 4):
                members = self._members(batch, base)
                self.jitter = max(self.jitter, members.jitter)
                yield members
                held += members.bytes
                if kept is not None and held <= self.budget // 2:
                    kept.append(members)
                else:
                    kept = None
            if kept is not None:
                self._kept = base, kept

        return base, made()

    def _members(self, batch: ExpertBatch, base: BaseExpert | None) -> Members:
        parts, inputs = self.parts, self.inputs[batch.rows]
        given = None
        if base is not None:
            flat = self.kernel.evaluate(base.inputs, inputs.flatten(0, 1))
            given = base, flat.view(len(base.inputs), *inputs.shape[:2]).transpose(0, 1)
        matrices = parts.covariances(batch.experts, inputs)
        noise = parts.noise(batch.experts)
        return Members.of(batch, inputs, matrices, noise, self.residual[batch.rows], given)

    def row_blocks(self, x: Tensor, width: int = 0) -> Iterator[slice]:
        """Rows of x (t, d) for which arrays of (rows of a batch + width) columns fit."""
        largest = int(self.sizes.max())
        entries = batch_bytes(x.device) // x.element_size()
        width += min(len(self.residual), max(entries // largest, largest))
        row = max(16 * width * x.element_size(), self.budget // MOST_ROWS)
        return row_chunks(len(x), row, self.budget)
