"""Prediction from the inducing points nearest to an input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.means.base import Mean
from gpx.methods.base.model import Marginals, Posterior
from gpx.methods.nearest.rules import Rule
from gpx.methods.nearest.seen_points import SeenPoints
from gpx.sampling import SHARED, Frequencies, prior_functions

CHUNK_BYTES = 2**23
"""Of what is gathered for one chunk of test rows."""


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
        self._prepared: tuple[SeenPoints, Tensor, list[Tensor], list[int]] | None = None
        self.register_data_sized()

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: how many inducing points an input sees."""
        return {"num_neighbours": self.num_neighbours, "rule": self.rule}

    def __getstate__(self) -> dict[str, Any]:
        """Without what is prepared for predictions, which is made again where they are asked."""
        return {**self.__dict__, "_prepared": None}

    def _points(self) -> SeenPoints:
        """What predictions share, made anew where Z or the kernel is another than before."""
        if self._prepared is not None:
            points, z, parts, versions = self._prepared
            if z is self.inducing and versions == [part._version for part in parts]:
                return points
        z, points = self.inducing, SeenPoints(self.kernel, self.inducing, self.rule, self.jitter)
        parts = [z, *self.kernel.parameters(), *self.kernel.buffers()]
        self._prepared = points, z, parts, [part._version for part in parts]
        return points

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._prepared = None
        return super()._apply(fn, recurse)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Marginals of f at x (n, d): O(H^3) a row and the search among M points.

        What all rows share, such as the search tree, is made at the first call and kept.
        """
        mean, variance = [], []
        for rows in self._chunks(x):
            weights, rest, near = self._seen(rows)
            root = self.q_root[near].double()
            spread = (
                root * weights if root.ndim == 2 else (root.mT @ weights.unsqueeze(2)).squeeze(2)
            )
            mean.append((weights * self.q_mean[near]).sum(1))
            variance.append(rest + spread.square().sum(1))
        if len(mean) == 1:
            return Marginals(mean[0].to(x) + self.mean(x), variance[0].to(x))
        return Marginals(torch.cat(mean).to(x) + self.mean(x), torch.cat(variance).to(x))

    def _chunks(self, x: Tensor) -> tuple[Tensor, ...]:
        h, width = self.num_neighbours, 1 if self.q_root.ndim == 1 else self.q_root.shape[1]
        size = max(1, CHUNK_BYTES // (8 * h * (x.shape[1] + h + width)))
        return (x,) if len(x) <= size else x.split(size)

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (b, h) of what rows x (b, d) see, the variance left (b,), and which (b, h)."""
        points = self._points()
        near = points.nearest(x, self.num_neighbours)
        return *points.conditionals(x, near), near

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
            found = []
            for rows in self._chunks(x):
                weights, _, near = self._seen(rows)
                found.append((gap[:, near] * weights.to(x)).sum(2))
            return prior(x) + self.mean(x) + torch.cat(found, 1)

        return paths
