"""Base classes of the posteriors of experts."""

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
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.experts.members import CommunicationExpert, Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.rows import ExpertBatch, ExpertRows

BATCH_SHARE = 4
"""One part in so many of the budget is for the covariances of a batch of experts."""
MAX_BLOCK_ROWS = {"cpu": 512, "cuda": 2048}
"""Most test points that are predicted at a time: few, so that their arrays are small, on a device
more, for fewer launches."""


class PartsPosterior(Posterior):
    """A posterior that holds copies of the experts' kernel, mean function and noise.

    Args:
        parts: kernel, mean function and noise of the experts; copied.
        budget: bytes that factors and covariances may take.

    Attributes:
        inputs (n, d): training inputs.
        jitter: largest jitter added to a diagonal so far.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs",)
    inputs: Tensor

    def __init__(self, parts: ExpertParts, budget: int) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(parts.kernel), untrained(parts.mean)
        self.likelihood = untrained(parts.likelihood)
        self.own = copy.deepcopy(parts.own)
        if self.own is not None:
            self.own.requires_grad_(False)
        self.budget = budget
        self.jitter = 0.0
        self.register_data_sized()

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: number of inputs of the training data."""
        return self.inputs.shape[1] if self.inputs.ndim == 2 else None

    @property
    def parts(self) -> ExpertParts:
        """Kernel, mean function and noise of the experts."""
        return ExpertParts(self.kernel, self.mean, self.likelihood, self.own)

    def own_hyperparameters(self) -> dict[str, Tensor] | None:
        """As in ``Posterior``: hyperparameters of all experts, (K, ...) each."""
        if self.own is None:
            return None
        found: dict[str, list[Tensor]] = {}
        for number in range(self.own.num_experts):
            for part, module in self.parts.of_expert(number).named().items():
                for name, value in natural_parameters(module).items():
                    found.setdefault(f"{part}.{name}", []).append(value)
        return {name: torch.stack(values) for name, values in found.items()}

    def latent(self, members: Members, x: Tensor) -> Marginals:
        """Mean and variance (c, t) of the experts' latent functions, each at its own points.

        Args:
            members: experts without a communication expert.
            x (c, t, d): points of each expert.
        """
        experts = members.batch.experts
        prior_cross = self.parts.covariances(experts, members.inputs, x)
        cross = members.conditional_covariance(prior_cross)
        prior = self.parts.variances(experts, x)
        found = members.predict(cross, Marginals(torch.zeros_like(prior), prior), prior)
        return Marginals(found.mean + self.parts.means(experts, x), found.variance)


class RegionsPosterior(PartsPosterior):
    """A posterior in which a point takes the hyperparameters of the expert with nearest centre.

    Args:
        parts, budget: as in ``PartsPosterior``.
        regions: the centres of the experts; copied.
    """

    def __init__(self, parts: ExpertParts, budget: int, regions: Regions) -> None:
        super().__init__(parts, budget)
        self.regions = copy.deepcopy(regions)

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """As in ``Posterior``; with own hyperparameters the nearest expert's noise is added."""
        if self.own is None:
            return super().predictive(x, likelihood)
        mean, variance = self.predict(x)
        return Normal(mean, (variance + self.parts.noise(self.regions.nearest(x))).sqrt())

    @property
    def has_own_noise(self) -> bool:
        """As in ``Posterior``: whether experts have their own hyperparameters."""
        return self.own is not None


class ExpertsPosterior(PartsPosterior):
    """K exact Gaussian processes conditioned on their rows.

    The state is the training inputs and residuals, one expert after the other, and the
    hyperparameters. The experts are factorised at the first prediction; the factors are kept if
    they fit into half of the budget.

    Args:
        parts, budget: as in ``PartsPosterior``.

    Attributes:
        residual (n,): targets minus the expert's prior mean.
        sizes (K,): number of rows of every expert.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs", "residual", "sizes")
    derived: ClassVar[tuple[str, ...]] = ("_cached_experts",)
    residual: Tensor
    sizes: Tensor

    def __init__(self, parts: ExpertParts, budget: int) -> None:
        super().__init__(parts, budget)
        self._cached_experts: tuple[CommunicationExpert | None, list[Members]] | None = None

    @torch.no_grad()
    def store_rows(self, x: Tensor, y: Tensor, rows: ExpertRows) -> None:
        """Store the rows of every expert; raises DataError for targets that are not finite."""
        residual = y.new_empty(len(rows.rows))
        position = ExpertRows(torch.arange(len(rows.rows), device=x.device), rows.sizes)
        inputs = x[rows.rows]
        for batch in position.batches(x.element_size(), self.budget):
            gap = y[rows.rows[batch.rows]] - self.parts.means(batch.experts, inputs[batch.rows])
            residual[batch.rows] = gap  # padding repeats a row with the same value
        self.keep(x, inputs=inputs, residual=residual)
        self.sizes = rows.sizes.clone()
        require_finite(self.residual)
        self._cached_experts = None

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {
            "num_experts": len(self.sizes),
            "largest_expert": int(self.sizes.max()),
            "jitter": self.jitter,
        }

    def communication_expert(self) -> CommunicationExpert | None:
        """The expert whose posterior the others start from; None: they start from the prior."""
        return None

    def expert_rows(self) -> ExpertRows:
        """Indices into ``inputs`` of the rows of every expert but the communication expert."""
        return ExpertRows(torch.arange(len(self.inputs), device=self.inputs.device), self.sizes)

    def experts(
        self, needed: Tensor | None = None
    ) -> tuple[CommunicationExpert | None, Iterator[Members]]:
        """The communication expert, if any, and batches of the others; cached if they fit.

        Args:
            needed (K,): whether each expert is needed; without a cache, batches without any that
                is are left out. None: all are.
        """
        if self._cached_experts is not None:
            return self._cached_experts[0], iter(self._cached_experts[1])
        communication = self.communication_expert()
        entry = self.inputs.element_size()
        batches = list(self.expert_rows().batches(entry, self.budget // BATCH_SHARE))
        base = 0 if communication is None else len(communication.inputs)
        sizes = [b.rows.numel() * (b.rows.shape[1] + base) for b in batches]
        if entry * sum(sizes) > self.budget // 2:
            if needed is not None:
                batches = [batch for batch in batches if bool(needed[batch.experts].any())]
            return communication, (self._members(batch, communication) for batch in batches)
        # in one array: many that stay, between those of the work, leave gaps that are lost
        storage = self.inputs.new_empty(sum(sizes)).split(sizes)
        members = [
            self._members(batch, communication, part)
            for batch, part in zip(batches, storage, strict=True)
        ]
        self._cached_experts = communication, members
        return communication, iter(members)

    def _members(
        self,
        batch: ExpertBatch,
        communication: CommunicationExpert | None,
        storage: Tensor | None = None,
    ) -> Members:
        parts, inputs = self.parts, self.inputs[batch.rows]
        start = None
        if communication is not None:
            base = communication.inputs
            flat = self.kernel.evaluate(base, inputs.flatten(0, 1))
            start = communication, flat.view(len(base), *inputs.shape[:2]).transpose(0, 1)
        matrices = parts.covariances(batch.experts, inputs)
        noise = parts.noise(batch.experts)
        residual = self.residual[batch.rows]
        made = Members.condition(batch, inputs, matrices, noise, residual, start, storage)
        self.jitter = max(self.jitter, made.jitter)
        return made

    def row_blocks(self, x: Tensor, width: int = 0) -> Iterator[slice]:
        """Blocks of rows of x (t, d) whose arrays fit the budget, with ``width`` more columns."""
        width += self.expert_rows().widest(self.inputs.element_size(), self.budget // BATCH_SHARE)
        most = MAX_BLOCK_ROWS.get(x.device.type, MAX_BLOCK_ROWS["cpu"])
        row = max(16 * width * x.element_size(), self.budget // most)
        return row_chunks(len(x), row, self.budget)
