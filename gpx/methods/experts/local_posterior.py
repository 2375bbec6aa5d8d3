"""Posterior of local experts: the nearest expert predicts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.methods.base.posterior import Marginals
from gpx.methods.experts.members import Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.posterior import ExpertsPosterior, RegionsPosterior
from gpx.methods.experts.rows import ExpertRows
from gpx.sampling import SHARED, Frequencies, prior_functions


class LocalExpertsPosterior(RegionsPosterior, ExpertsPosterior):
    """Predictions of K experts; every point is predicted by the one with the nearest centre.

    Args:
        parts, budget, regions: as in ``RegionsPosterior``.

    Cost: m^2 multiply-adds per test point for experts of m rows.
    """

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function of the nearest expert at x (t, d)."""
        mean, variance = x.new_empty(len(x)), x.new_empty(len(x))
        for block in self.row_blocks(x):
            at, block_mean, block_variance = x[block], mean[block], variance[block]
            for members, rows, real in self.points_by_batch(self.regions.nearest(at)):
                found = self.latent(members, at[rows])
                block_mean[rows[real]] = found.mean[real]
                block_variance[rows[real]] = found.variance[real]
        return Marginals(mean, variance)

    def points_by_batch(self, nearest: Tensor) -> list[tuple[Members, Tensor, Tensor]]:
        """Batches of experts with the points that they predict.

        Args:
            nearest (t,): expert of every point.

        Returns:
            for every batch that has points: the experts, the indices (c, s) of their points, padded
            to one length, and a mask (c, s) that is False for padding.
        """
        counts = torch.bincount(nearest, minlength=len(self.sizes))
        start, order = counts.cumsum(0) - counts, torch.argsort(nearest, stable=True)
        found = []
        for members in self.experts()[1]:
            experts = members.batch.experts
            longest = int(counts[experts].max())
            if not longest:
                continue
            place = torch.arange(longest, device=nearest.device).expand(len(experts), longest)
            real = place < counts[experts].unsqueeze(1)
            rows = order[torch.where(real, place + start[experts].unsqueeze(1), 0)]
            found.append((members, rows, real))
        return found

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
        noise = torch.randn(
            num,
            total,
            generator=generator,
            dtype=posterior.residual.dtype,
            device=posterior.residual.device,
        )
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

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, t) at x (t, d)."""
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
