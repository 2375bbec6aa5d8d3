"""Posterior of local experts: the nearest expert predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.methods.base.posterior import Marginals
from gpx.methods.base.sampled_functions import values_of_functions
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.posterior import ExpertsPosterior, RegionsPosterior
from gpx.methods.experts.rows import ExpertRows
from gpx.sampling import SHARED, Frequencies, prior_functions


class LocalExpertsPosterior(RegionsPosterior, ExpertsPosterior):
    """Predictions of K experts; every point is predicted by the one with the nearest centre.

    Args:
        parts, budget, regions: as in ``RegionsPosterior``.

    Cost: m^2 multiply-adds per test point for experts of m rows. Where factors do not fit into half
    of the budget, every call also factorises each batch of experts that has points once.
    """

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function of the nearest expert at x (t, d)."""
        mean, variance = x.new_empty(len(x)), x.new_empty(len(x))
        # one array for all blocks: small results of each, kept between the large arrays of
        # distances, would hinder the allocator from using the memory of those again
        nearest = torch.empty(len(x), dtype=torch.long, device=x.device)
        blocks = list(self.row_blocks(x))
        for block in blocks:
            nearest[block] = self.regions.nearest(x[block])
        seen = torch.bincount(nearest, minlength=len(self.sizes)) > 0
        # a batch of experts, whose factors may not be kept, predicts all its points in turn
        for members in self.experts(seen)[1] if blocks else ():
            for block in blocks:
                points = PointsByExpert.of(nearest[block], len(self.sizes))
                chosen = points.of_experts(members.batch.experts)
                if chosen is None:
                    continue
                rows, real = chosen
                found = self.latent(members, x[block][rows])
                mean[block][rows[real]] = found.mean[real]
                variance[block][rows[real]] = found.variance[real]
        return Marginals(mean, variance)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t), sampled by pathwise conditioning.

        In every region they are functions of its expert. Those of different experts are
        independent, so that the functions jump between regions.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        Cost: num prior functions for every expert.
        """
        return ExpertPaths(self, num, generator, frequencies, self.regions.nearest)


class PointsByExpert(NamedTuple):
    """The points that every expert predicts.

    Attributes:
        order (t,): point numbers, one expert after the other.
        counts (K,), start (K,): number of points of every expert, and their place in ``order``.
    """

    order: Tensor
    counts: Tensor
    start: Tensor

    @classmethod
    def of(cls, expert: Tensor, num_experts: int) -> PointsByExpert:
        """Sort points by their expert (t,)."""
        counts = torch.bincount(expert, minlength=num_experts)
        return cls(torch.argsort(expert, stable=True), counts, counts.cumsum(0) - counts)

    def of_experts(self, experts: Tensor) -> tuple[Tensor, Tensor] | None:
        """Points (c, s) of ``experts`` (c,), padded to one length; None if they have none.

        Returns:
            their numbers, and a mask (c, s) that is False for padding.
        """
        longest = int(self.counts[experts].max())
        if not longest:
            return None
        place = torch.arange(longest, device=experts.device).expand(len(experts), longest)
        real = place < self.counts[experts].unsqueeze(1)
        return self.order[torch.where(real, place + self.start[experts].unsqueeze(1), 0)], real


class ExpertPaths:
    """Sampled functions that at every x equal a sampled function of one expert.

    Args:
        posterior: the experts.
        num: number of functions.
        generator, frequencies: for the prior functions, and for noise at the training rows.
        choose_expert: maps x (t, d) to the expert at every point: (t,), or (num, t) if it differs
            between functions.
    """

    @torch.no_grad()
    def __init__(
        self,
        posterior: ExpertsPosterior,
        num: int,
        generator: torch.Generator,
        frequencies: Frequencies,
        choose_expert: Callable[[Tensor], Tensor],
    ) -> None:
        self.posterior, self.num, self.choose_expert = posterior, num, choose_expert
        self.parts = [posterior.parts.of_expert(k) for k in range(len(posterior.sizes))]
        dims = posterior.inputs.shape[1]
        self.prior = expert_prior_functions(self.parts, num, dims, generator, frequencies)
        total = len(posterior.inputs)
        noise = posterior.residual.new_empty(num, total).normal_(generator=generator)
        every = ExpertRows(torch.arange(total, device=noise.device), posterior.sizes)
        gap = torch.empty_like(noise)
        rows = every.rows.split(posterior.sizes.tolist())
        for part, prior, own in zip(self.parts, self.prior, rows, strict=True):
            gap[:, own] = prior(posterior.inputs[own])
            gap[:, own] += part.likelihood.noise_variance.sqrt() * noise[:, own]
        gap = posterior.residual - gap
        self.weights = torch.empty_like(gap)
        for members in posterior.experts()[1]:
            batch = members.batch
            right = batch.zero_padding(gap[:, batch.rows]).permute(1, 2, 0)
            found = torch.cholesky_solve(right, members.factor).permute(2, 0, 1)
            real = slice(None) if batch.mask is None else batch.mask
            self.weights[:, batch.rows[real]] = found[:, real]
        self.rows = rows

    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, t) at x (t, d)."""
        return values_of_functions(self.posterior, self._values, x)

    def _values(self, x: Tensor) -> Tensor:
        found = x.new_empty(self.num, len(x))
        expert = self.choose_expert(x).expand(self.num, len(x))
        for k in torch.unique(expert).tolist():
            here = expert == k
            points, own, part = here.any(0), self.rows[k], self.parts[k]
            cross = part.kernel.evaluate(self.posterior.inputs[own], x[points])
            values = self.prior[k](x[points]) + self.weights[:, own] @ cross + part.mean(x[points])
            found[:, points] = torch.where(here[:, points], values, found[:, points])
        return found


def expert_prior_functions(
    parts: list[ExpertParts],
    num: int,
    dims: int,
    generator: torch.Generator,
    frequencies: Frequencies,
) -> list[Callable[[Tensor], Tensor]]:
    """``num`` prior functions of ``dims`` inputs for every expert."""
    return [
        prior_functions(part.kernel, num, dims, generator=generator, frequencies=frequencies)
        for part in parts
    ]
