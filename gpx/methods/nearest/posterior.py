"""Prediction from the inducing points nearest to an input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gpx.inference.neighbour_conditional import local_system, near_rows
from gpx.kernels.base import Kernel
from gpx.means.base import Mean
from gpx.methods.base.model import Marginals, Posterior
from gpx.sampling import SHARED, Frequencies, prior_functions

Rule = Literal["kernel", "correlation", "euclidean", "random"]
RULES = ("kernel", "correlation", "euclidean", "random")
"""Largest covariance; largest correlation; least distance in units of the lengthscales (a tree
search; the same as the first two for kernels that fall with the distance); points at random."""

SCORE_BYTES = 2**26
"""Of the scores of one chunk of inputs against all inducing points."""

PREDICT_CHUNK = 1024
"""Test rows per step of a prediction."""


@torch.no_grad()
def nearest_inducing(kernel: Kernel, z: Tensor, x: Tensor, count: int, rule: Rule) -> Tensor:
    """Numbers (b, count) of the inducing points z (M, d) that inputs x (b, d) see; see ``RULES``.

    "random" depends on the input alone: an input sees the same points whenever it is asked.
    """
    if rule == "euclidean":
        return near_rows(kernel, z, x, count)
    found = []
    for rows in x.split(max(1, SCORE_BYTES // (8 * len(z)))):
        if rule == "random":
            draws = torch.Generator().manual_seed(0)
            direction = torch.randn(x.shape[1], generator=draws, dtype=torch.float64).to(x.device)
            phases = torch.rand(len(z), generator=draws, dtype=torch.float64).to(x.device)
            score = ((1e4 * (rows.double() @ direction).sin())[:, None] * (1.0 + phases)).sin()
        else:
            score = kernel.evaluate(rows, z)
            if rule == "correlation":
                score = score / kernel.diagonal(z).sqrt()
        found.append(score.topk(count, dim=1).indices)
    return torch.cat(found)


class NearestPosterior(Posterior):
    """Posterior process of q(u), seen by every input through its nearest inducing points.

    That of ``SWSGP`` and ``VNNGP``; also of an SVGP which was trained with all its inducing points
    and predicts with the nearest H: ``keep`` its Z, and mean and root of its q(u).

    Args:
        kernel, mean: copied.
        num_neighbours: H.
        rule: see ``RULES``.
        jitter: added to the covariance of the H, relative to the kernel's variance.

    Attributes:
        inducing (M, d), q_mean (M,): Z, m.
        q_root (M,) or (M, r): deviations, or a root of S.
    """

    data_sized = ("inducing", "q_mean", "q_root")
    inducing: Tensor
    q_mean: Tensor
    q_root: Tensor

    def __init__(
        self, kernel: Kernel, mean: Mean, *, num_neighbours: int, rule: Rule, jitter: float
    ) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self.mean = copy.deepcopy(mean).requires_grad_(False)
        self.num_neighbours = num_neighbours
        self.rule: Rule = rule
        self.jitter = jitter
        self.register_data_sized()

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: how many inducing points an input sees."""
        return {"num_neighbours": self.num_neighbours, "rule": self.rule}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Marginals of f at x (n, d): O(H^3) a row and the search among M points."""
        parts = [self._predict(rows) for rows in x.split(PREDICT_CHUNK)]
        mean, variance, _, _ = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return Marginals(mean + self.mean(x), variance)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        near = nearest_inducing(self.kernel, self.inducing, x, self.num_neighbours, self.rule)
        jitter = self.jitter * self.kernel.diagonal(self.inducing[:1]).double().mean()
        points = self.inducing.double()[near]
        system = local_system(self.kernel, points, x.double().unsqueeze(1), jitter)
        weights = system.weights.squeeze(2)
        root = self.q_root.double()[near]
        spread = root * weights if root.ndim == 2 else (root * weights.unsqueeze(2)).sum(1)
        mean = (weights * self.q_mean.double()[near]).sum(1)
        variance = system.rest.squeeze(1) + spread.square().sum(1)
        return mean.to(x), variance.to(x), weights.to(x), near

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (n, d) -> (num, n), the same wherever they are asked.

        f(x) = prior(x) + a(x)^T (u - prior(Z))_I with u ~ q and a prior function from random
        Fourier features; it jumps where the nearest inducing points change, as the mean does.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        size, num_inputs = self.inducing.shape
        prior = prior_functions(
            self.kernel, num, num_inputs, generator=generator, frequencies=frequencies
        )
        width = self.q_root.shape[-1]
        noise = torch.randn(
            num, width, generator=generator, dtype=self.q_mean.dtype, device=self.q_mean.device
        )
        root = self.q_root
        u = self.q_mean + (noise * root if root.ndim == 1 else noise @ root.mT)
        # u has the jitter that K_I has
        jitter = self.jitter * self.kernel.diagonal(self.inducing[:1]).mean()
        nugget = torch.randn(
            num, size, generator=generator, dtype=self.q_mean.dtype, device=self.q_mean.device
        )
        gap = u - prior(self.inducing) - jitter.sqrt() * nugget

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            _, _, weights, near = self._predict(x)
            return prior(x) + self.mean(x) + (gap[:, near] * weights).sum(2)

        return paths
