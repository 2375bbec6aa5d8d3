"""Local experts: every point is predicted by the expert with the nearest centre."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, DataError
from gpx.inducing import Blocks, ClusterBlocks, Partition, require_partition
from gpx.inducing.partition import Regions, choose_num_blocks, require_regions
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import budget_in_bytes
from gpx.linalg.nearest import nearest_neighbours
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Posterior
from gpx.methods.base.required_likelihood import require_gaussian
from gpx.methods.experts.committee import ROWS_PER_EXPERT
from gpx.methods.experts.local_posterior import LocalExpertsPosterior
from gpx.methods.experts.parts import ExpertParts, OwnHyperparameters
from gpx.methods.experts.rows import ExpertRows
from gpx.priors import Priors
from gpx.tensor_checks import check_at_least, check_one_of

Sharing = Literal["own", "shared"]


class LocalExperts(Model):
    """Exact Gaussian processes on regions of the input space, trained in batches.

    Predictions jump at the borders of regions, and experts with few rows and hyperparameters of
    their own tend to be overconfident.

    Args:
        kernel, mean, likelihood: shared by all experts, or the initial values of each expert's own;
            the likelihood is Gaussian.
        num_experts: K; None: one per 500 rows or so, or one per block if the partition fixes the
            number of blocks.
        points_per_expert: number of rows of an expert, those nearest to its centre; rows may belong
            to several experts or to none. None: the rows of its block.
        hyperparameters: "own": every expert has its own kernel, mean and noise hyperparameters;
            "shared": all have the same.
        partition: of the rows, by regions of the input space; None: clusters of any size.
        memory_budget: for a batch of experts, as in ``gpx.linalg.budget_in_bytes``.

    Raises:
        ConfigError: a likelihood that is not Gaussian, a random partition, fewer than one expert or
            point.

    Cost: m^3 multiply-adds per expert of m rows and evaluation with its gradient; m^2 per test
    point.
    Source: Tran thesis, sections 2.5 and 4.4.5 (64 experts of 100 points).
    """

    data_sized: ClassVar[tuple[str, ...]] = ("rows", "sizes")
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    rows: Tensor
    sizes: Tensor
    _chosen: int | None = None  # the number of experts if it was chosen for data, not given

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_experts: int | None = None,
        points_per_expert: int | None = None,
        hyperparameters: Sharing = "own",
        partition: Partition | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, num_experts=num_experts, points_per_expert=points_per_expert)
        check_one_of(get_args(Sharing), hyperparameters=hyperparameters)
        cut = ClusterBlocks(balanced=False) if partition is None else require_partition(partition)
        self.partition = require_regions(cut, type(self).__name__)
        self.kernel, self.mean = kernel, mean
        self.likelihood = require_gaussian(
            likelihood, f"{type(self).__name__} is made of exact Gaussian processes"
        )
        self.num_experts, self.points_per_expert = num_experts, points_per_expert
        self.sharing: Sharing = hyperparameters
        self.batch_bytes = budget_in_bytes(memory_budget)
        self.own: OwnHyperparameters | None = None
        self.regions = Regions()
        self.register_data_sized()
        self._make_own()

    @property
    def hyperpriors(self) -> Priors | None:
        """As in ``Model``; only for shared hyperparameters.

        Raises:
            ConfigError: priors of hyperparameters that every expert has for itself.
        """
        held: Priors | None = self.__dict__.get("hyperpriors")
        return held

    @hyperpriors.setter
    def hyperpriors(self, priors: Priors | None) -> None:
        if priors is not None and self.sharing == "own":
            raise ConfigError(
                "priors are of hyperparameters that the model has once, and every expert has its "
                "own: choose hyperparameters=shared, or leave the priors out"
            )
        self.__dict__["hyperpriors"] = priors

    def _make_own(self) -> None:
        if self.sharing != "own" or self.num_experts is None:
            return
        if self.own is None or self.own.num_experts != self.num_experts:
            self.own = OwnHyperparameters(self.parts.named(), self.num_experts)

    @property
    def parts(self) -> ExpertParts:
        """Kernel, mean function and noise of the experts."""
        return ExpertParts(self.kernel, self.mean, self.likelihood, self.own)

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also, that an expert has no more rows than there are."""
        super().check(x)
        self._require_points(x)

    def _require_points(self, x: Tensor) -> None:
        size = self.points_per_expert
        if size is not None and size > len(x):
            raise DataError(f"points_per_expert={size} is more than the {len(x)} training points")

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: sets the number of experts, anew for other data if none was given."""
        per_expert = self.points_per_expert or ROWS_PER_EXPERT
        count, reason = choose_num_blocks(
            *(self.num_experts, self.partition, x, per_expert, "num_experts"), chosen=self._chosen
        )
        self.num_experts, self._chosen = count, count if reason else None
        self._make_own()
        return {"num_experts": (count, reason)} if reason else {}

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place the experts, using the current lengthscales, and initialise their hyperparameters.

        Raises:
            DataError: more experts than rows, or an expert without rows or with too many.
        """
        self._require_points(x)
        self.settle(x)
        assert self.num_experts is not None
        blocks = self.partition(x, self.kernel, self.num_experts, generator=generator)
        self.regions.place(blocks.centres, blocks.weights)
        self.rows, self.sizes = self._rows(x, blocks)
        if self.own is not None:
            self.own.reset(self.parts.named())
        least, most = int(self.sizes.min()), int(self.sizes.max())
        self.note = f"{self.num_experts} experts of {least} to {most} rows"

    def _rows(self, x: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        size = self.points_per_expert
        if size is None:
            return blocks.order, blocks.sizes
        root = blocks.weights.sqrt()
        found = nearest_neighbours(x * root, blocks.centres * root, size)
        return found.reshape(-1), torch.full_like(blocks.sizes, size)

    def expert_rows(self, x: Tensor) -> ExpertRows:
        """Rows of every expert among the training inputs x (n, d).

        Raises:
            ConfigError: ``initialise`` was not called with these rows.
        """
        if not len(self.sizes) or int(self.rows.max()) >= len(x):
            raise ConfigError(
                f"the experts are not placed among these {len(x)} training rows: call "
                "initialise(x, y, generator=...) with the rows to train on"
            )
        return ExpertRows(self.rows, self.sizes)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """As in ``Model``: the hyperparameters of the experts."""
        if self.own is None:
            return super().parameter_groups()
        return {"hyperparameters": list(self.own.parameters())}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> Posterior:
        """Posteriors of all experts; they are factorised at the first prediction."""
        posterior = LocalExpertsPosterior(self.parts, self.batch_bytes, self.regions)
        posterior.store_rows(x, y, self.expert_rows(x))
        return posterior

    def new_posterior(self) -> Posterior:
        """As in ``Model``."""
        return LocalExpertsPosterior(self.parts, self.batch_bytes, self.regions)
