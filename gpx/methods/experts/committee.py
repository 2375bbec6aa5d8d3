"""Committees: experts with shared hyperparameters on disjoint rows, combined by a rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inducing import ClusterBlocks, ColumnBlocks, Partition, require_partition
from gpx.inducing.partition import choose_num_blocks
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import budget_in_bytes
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.required_likelihood import require_gaussian
from gpx.methods.experts.combination import CombinationRule, require_rule
from gpx.methods.experts.committee_posterior import CommitteePosterior
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.rows import ExpertRows
from gpx.tensor_checks import check_at_least

ROWS_PER_EXPERT = 500
"""Default number of rows per expert."""


class Committee(Model):
    """Exact Gaussian processes with one set of hyperparameters, each on its own rows.

    Trained on the sum of the experts' log marginal likelihoods (``ExpertsMLL``) with batched
    factorisations.

    Args:
        kernel, mean, likelihood: shared by all experts; the likelihood is Gaussian.
        rule: how predictions are combined; see ``gpx.methods.experts.combination``. With many
            experts all rules but "gpoe" and "grbcm" are overconfident (``experiments/experts``).
        num_experts: K; None: one per 500 rows or so, or one per block if the partition fixes the
            number of blocks. Under "grbcm" the first expert is the communication expert, on random
            rows.
        partition: of the rows; None: balanced clusters.
        memory_budget: for a batch of experts, as in ``gpx.linalg.budget_in_bytes``.

    Raises:
        ConfigError: an unknown rule, a likelihood that is not Gaussian, fewer than one expert.

    Cost: n m^2 multiply-adds per evaluation with its gradient for experts of m rows; memory for one
    batch of experts; predictions n m per test point.
    Source: Deisenroth and Ng 2015; Liu et al. 2018 (generalised robust).
    """

    data_sized = ("labels",)
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    labels: Tensor
    _chosen: int | None = None  # the number of experts if it was chosen for data, not given

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        rule: CombinationRule = "grbcm",
        num_experts: int | None = None,
        partition: Partition | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        super().__init__()
        require_rule(rule)
        check_at_least(1, num_experts=num_experts)
        self.partition = ClusterBlocks() if partition is None else require_partition(partition)
        if rule == "grbcm" and isinstance(self.partition, ColumnBlocks):
            raise _no_communication_expert("by a column")
        self.kernel, self.mean = kernel, mean
        self.likelihood = require_gaussian(
            likelihood, "Committee is made of exact Gaussian processes"
        )
        self.rule: CombinationRule = rule
        self.num_experts = num_experts
        self.batch_bytes = budget_in_bytes(memory_budget)
        self.register_data_sized()

    @property
    def parts(self) -> ExpertParts:
        """Kernel, mean function and noise of the experts."""
        return ExpertParts(self.kernel, self.mean, self.likelihood)

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: sets the number of experts, anew for other data if none was given.

        Raises:
            ConfigError: under "grbcm", a partition that fixes the number of blocks, above one.
        """
        if self.rule == "grbcm" and self.partition.num_blocks(x) not in (None, 1):
            raise _no_communication_expert("that fixes the number of blocks")
        count, reason = choose_num_blocks(
            *(self.num_experts, self.partition, x, ROWS_PER_EXPERT, "num_experts"),
            chosen=self._chosen,
        )
        self.num_experts, self._chosen = count, count if reason else None
        return {"num_experts": (count, reason)} if reason else {}

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Partition the rows, using the current lengthscales.

        Raises:
            DataError: more experts than rows, or an expert without rows.
        """
        self.settle(x)
        assert self.num_experts is not None
        self.labels = self._labels(x, self.num_experts, generator)
        sizes = torch.bincount(self.labels)
        self.note = f"{len(sizes)} experts of {int(sizes.min())} to {int(sizes.max())} rows"

    def _labels(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        if self.rule != "grbcm" or count == 1:
            return self.partition(x, self.kernel, count, generator=generator).labels
        # the communication expert must cover the whole input space: random rows
        chosen = torch.randperm(len(x), generator=generator, device=x.device)[: len(x) // count]
        labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
        rest = torch.ones(len(x), dtype=torch.bool, device=x.device)
        rest[chosen] = False
        blocks = self.partition(x[rest], self.kernel, count - 1, generator=generator)
        labels[rest] = blocks.labels + 1
        return labels

    def expert_rows(self, x: Tensor) -> ExpertRows:
        """Rows of every expert among the training inputs x (n, d).

        Raises:
            ConfigError: ``initialise`` was not called with these rows.
        """
        if len(self.labels) != len(x):
            raise ConfigError(
                f"{len(self.labels)} training rows are partitioned and there are {len(x)}: call "
                "initialise(x, y, generator=...) with the rows to train on"
            )
        order = torch.argsort(self.labels, stable=True)
        return ExpertRows(order, torch.bincount(self.labels))

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> CommitteePosterior:
        """Posterior of the committee; the experts are factorised at the first prediction."""
        posterior = self.new_posterior()
        posterior.store_rows(x, y, self.expert_rows(x))
        return posterior

    def new_posterior(self) -> CommitteePosterior:
        """As in ``Model``."""
        return CommitteePosterior(self.parts, self.rule, self.batch_bytes)


def _no_communication_expert(partition: str) -> ConfigError:
    return ConfigError(
        f"rule=grbcm needs a communication expert on random rows, and a partition {partition} has "
        "none; use clusters or random blocks, or another rule"
    )
