"""Posterior of local experts: the nearest one predicts."""

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
    """Predictions of K experts, each in the region whose centre is nearest.

    Args:
        parts, budget, regions: as in ``RegionsPosterior``.

    Cost: m^2 multiply-adds per test point for experts of m rows.
    """

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function of the nearest expert at x (t, d)."""
        mean, variance = x.new_empty(2, len(x))
        for block in self.row_blocks(x):
            at, block_mean, block_variance = x[block], mean[block], variance[block]
            for members, rows, there in self.met(self.regions.nearest(at)):
                found = self.latent(members, at[rows])
                block_mean[rows[there]] = found.mean[there]
                block_variance[rows[there]] = found.variance[there]
        return Marginals(mean, variance)

    def met(self, nearest: Tensor) -> list[tuple[Members, Tensor, Tensor]]:
        """Batches of experts with the points that they predict.

        Args:
            nearest (t,): expert of every point.

        Returns:
            of every batch that has points, the numbers (c, s) of its points, padded, and where
            there is one (c, s).
        """
        counts = torch.bincount(nearest, minlength=len(self.sizes))
        start, order = counts.cumsum(0) - counts, torch.argsort(nearest, stable=True)
        found = []
        for members in self.experts()[1]:
            experts = members.batch.experts
            most = int(counts[experts].max())
            if not most:
                continue
            place = torch.arange(most, device=nearest.device).expand(len(experts), most)
            there = place < counts[experts].unsqueeze(1)
            rows = order[torch.where(there, place + start[experts].unsqueeze(1), 0)]
            found.append((members, rows, there))
        return found

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t): in every region one of its expert's.

        By pathwise conditioning, as ``ExactPosterior.sample_paths`` does; functions of different
        experts are independent and jump between regions.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        Cost: num prior functions for every expert.
        """
        return ExpertPaths(self, num, generator, frequencies, self.regions.nearest)


class ExpertPaths:
    """Functions that are at every x those of one expert, called with x (t, d).

    Args:
        posterior: the experts.
        num: functions.
        generator, frequencies: of the prior functions, and of noise at the training rows.
        chosen: the expert at every x (t, d): (t,), or (num, t) for every function.
    """

    @torch.no_grad()
    def __init__(
        self,
        posterior: ExpertsPosterior,
        num: int,
        generator: torch.Generator,
        frequencies: Frequencies,
        chosen: Callable[[Tensor], Tensor],
    ) -> None:
        self.posterior, self.num, self.chosen = posterior, num, chosen
        self.parts = [posterior.parts.of_expert(k) for k in range(len(posterior.sizes))]
        self.prior = expert_functions(self.parts, num, posterior.inputs, generator, frequencies)
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
            there = slice(None) if batch.mask is None else batch.mask
            self.weights[:, batch.rows[there]] = found[:, there]
        self.rows = rows

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, t)."""
        found, chosen = x.new_empty(self.num, len(x)), self.chosen(x).expand(self.num, len(x))
        for k in torch.unique(chosen).tolist():
            here = chosen == k
            points, own, part = here.any(0), self.rows[k], self.parts[k]
            cross = part.kernel.evaluate(self.posterior.inputs[own], x[points])
            values = self.prior[k](x[points]) + self.weights[:, own] @ cross + part.mean(x[points])
            found[:, points] = torch.where(here[:, points], values, found[:, points])
        return found


def expert_functions(
    parts: list[ExpertParts],
    num: int,
    like: Tensor,
    generator: torch.Generator,
    frequencies: Frequencies,
) -> list[Callable[[Tensor], Tensor]]:
    """``num`` prior functions for every expert; ``like`` (n, d) gives the number of inputs."""
    return [
        prior_functions(
            part.kernel, num, like.shape[1], generator=generator, frequencies=frequencies
        )
        for part in parts
    ]
