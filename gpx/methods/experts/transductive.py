"""Transductive local Gaussian processes: every test point has its own expert."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import NotAvailable, class_name
from gpx.inducing import Partition
from gpx.inducing.partition import Regions
from gpx.inference.exact_solver import require_finite
from gpx.inference.neighbour_conditional import NearRows
from gpx.inference.padded_rows import batch_bytes
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.experts.local_experts import LocalExperts, Sharing
from gpx.methods.experts.local_posterior import expert_prior_functions
from gpx.methods.experts.members import Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.posterior import RegionsPosterior
from gpx.methods.experts.rows import ARRAYS_PER_BATCH, ExpertBatch
from gpx.sampling import SHARED, Frequencies
from gpx.tensor_checks import check_at_least


class Transductive(LocalExperts):
    """Predictions from the nearest training points of each test point.

    Trained like ``LocalExperts``. A test point takes the hyperparameters of the expert with the
    nearest centre, and conditions on its ``num_neighbours`` nearest training points.

    Args:
        num_neighbours: m; the number of training points gives an exact Gaussian process.
        others: as in ``LocalExperts``.

    Cost: n d for the neighbours and m^3 / 3 multiply-adds per test point.
    Source: Tran thesis, sections 2.5 and 4.4.5.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_neighbours: int = 100,
        num_experts: int | None = None,
        points_per_expert: int | None = None,
        hyperparameters: Sharing = "own",
        partition: Partition | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            num_experts=num_experts,
            points_per_expert=points_per_expert,
            hyperparameters=hyperparameters,
            partition=partition,
            memory_budget=memory_budget,
        )
        check_at_least(1, num_neighbours=num_neighbours)
        self.num_neighbours = num_neighbours

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> TransductivePosterior:
        """The posterior, which stores all training data and the experts' hyperparameters."""
        self.expert_rows(x)
        require_finite(y)
        posterior = self.new_posterior()
        posterior.keep(x, inputs=x, targets=y)
        return posterior

    def new_posterior(self) -> TransductivePosterior:
        """As in ``Model``."""
        return TransductivePosterior(
            self.parts, self.batch_bytes, self.regions, self.num_neighbours
        )


class TransductivePosterior(RegionsPosterior):
    """Posterior in which every test point conditions only on its nearest training points.

    Args:
        parts, budget, regions: as in ``RegionsPosterior``.
        num_neighbours: m.

    Attributes:
        targets (n,): of the training data ``inputs`` (n, d).
    """

    data_sized = ("inputs", "targets")
    derived = ("_near",)
    targets: Tensor

    def __init__(
        self, parts: ExpertParts, budget: int, regions: Regions, num_neighbours: int
    ) -> None:
        super().__init__(parts, budget, regions)
        self.num_neighbours = num_neighbours
        self._near: NearRows | None = None

    @torch.no_grad()
    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> TransductivePosterior:
        """As in ``Posterior``: adds rows that may be neighbours of a test point.

        Raises:
            NotAvailable: known noise of each row.
        """
        if noise is not None:
            raise NotAvailable(
                f"{class_name(self)} has one noise variance for all rows: leave noise= out"
            )
        made = copy.deepcopy(self)
        made.keep(
            self.inputs, inputs=torch.cat([self.inputs, x]), targets=torch.cat([self.targets, y])
        )
        return made

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {"num_neighbours": min(self.num_neighbours, len(self.inputs)), "jitter": self.jitter}

    def neighbours(self, x: Tensor) -> Tensor:
        """Training rows (t, m) nearest to every row of x (t, d), found exactly.

        Distances use the shared lengthscales, or the initial ones if experts have their own.
        """
        search = NearRows.of(self._near, self.kernel, self.inputs)
        if not torch.compiler.is_exporting():
            self._near = search
        return search(x, self.num_neighbours)

    @torch.no_grad()
    def members(self, x: Tensor, rows: Tensor) -> Members:
        """One expert for every row of x (t, d).

        Args:
            rows (t, m): training rows of every expert.
        """
        parts, inputs = self.parts, self.inputs[rows]
        batch = ExpertBatch(rows, None, self.regions.nearest(x), rows.numel())
        made = Members.condition(
            batch,
            inputs,
            parts.covariances(batch.experts, inputs),
            parts.noise(batch.experts),
            self.targets[rows] - parts.means(batch.experts, inputs),
        )
        self.jitter = max(self.jitter, made.jitter)
        return made

    def blocks(self, x: Tensor) -> Iterator[slice]:
        """Blocks of rows of x (t, d) that are predicted together."""
        row = min(self.num_neighbours, len(self.inputs)) ** 2 * x.element_size()
        budget = min(self.budget, ARRAYS_PER_BATCH * batch_bytes(x.device))
        return row_chunks(len(x), ARRAYS_PER_BATCH * row, budget)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d)."""
        mean, variance = x.new_empty(len(x)), x.new_empty(len(x))
        rows = self.neighbours(x)
        for block in self.blocks(x):
            at = x[block]
            found = self.latent(self.members(at, rows[block]), at.unsqueeze(1))
            mean[block], variance[block] = found.mean.squeeze(1), found.variance.squeeze(1)
        return Marginals(mean, variance)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t) with the predicted mean and variance everywhere.

        Each is a prior function with noise at all training points, updated at every x by pathwise
        conditioning on the neighbours of x.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        parts = [self.parts.of_expert(k) for k in range(len(self.regions))]
        dims = self.inputs.shape[1]
        prior = expert_prior_functions(parts, num, dims, generator, frequencies)
        shape = num, len(self.inputs)
        noise = self.inputs.new_empty(shape).normal_(generator=generator)

        def block(x: Tensor, rows: Tensor) -> Tensor:
            members = self.members(x, rows)
            experts = members.batch.experts
            cross = self.parts.covariances(experts, members.inputs, x.unsqueeze(1))
            drawn = x.new_empty(num, *rows.shape)
            start = x.new_empty(num, len(x))
            for k in torch.unique(experts).tolist():
                own = experts == k
                start[:, own] = prior[k](x[own]) + parts[k].mean(x[own])
                drawn[:, own] = prior[k](self.inputs[rows[own]].flatten(0, 1)).view(
                    num, -1, rows.shape[1]
                )
                scale = parts[k].likelihood.noise_variance.sqrt()
                drawn[:, own] += scale * noise[:, rows[own]]
            means = self.parts.means(experts, members.inputs)
            gap = (self.targets[rows] - means - drawn).permute(1, 2, 0)
            weights = torch.cholesky_solve(gap, members.factor)
            return start + torch.einsum("tms,tm->st", weights, cross.squeeze(2))

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            rows, found = self.neighbours(x), x.new_empty(num, len(x))
            for part in self.blocks(x):
                found[:, part] = block(x[part], rows[part])
            return found

        return paths
