"""Prediction from the inducing points nearest to an input."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.kernels.base import Kernel
from gpx.linalg.prepared import versions
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.nearest.nearness import Nearness, mean_variance
from gpx.methods.nearest.seen_points import SeenPoints
from gpx.methods.nearest.single_input import SingleInput
from gpx.sampling import SHARED, Frequencies, prior_functions

CHUNK_BYTES = 2**21
"""Memory per chunk of test rows, small enough for the cache."""


class NearestPosterior(Posterior):
    """Posterior process of q(u) in which every input depends on its nearest inducing points only.

    The posterior of ``SWSGP`` and ``VNNGP``. It can also predict with the nearest H inducing points
    of a trained SVGP: pass its Z, and mean and root of its q(u), to ``keep``.

    Args:
        kernel, mean: copied.
        num_neighbours: H.
        rule: see ``Nearness``.
        jitter: added to the covariance of the H points, relative to the kernel's variance.

    Attributes:
        inducing (M, d), q_mean (M,): Z, m.
        q_root (M,) or (M, r): standard deviations, or a root of S.
    """

    data_sized = ("inducing", "q_mean", "q_root")
    derived = ("_prepared", "_single")
    inducing: Tensor
    q_mean: Tensor
    q_root: Tensor

    def __init__(
        self, kernel: Kernel, mean: Mean, *, num_neighbours: int, rule: Nearness, jitter: float
    ) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.num_neighbours = num_neighbours
        self.rule: Nearness = rule
        self.jitter = jitter
        self._prepared: tuple[SeenPoints, list[Tensor], list[int]] | None = None
        self._single: SingleInput | None = None
        self.register_data_sized()

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: columns of the inducing points; None before there are any."""
        return self.inducing.shape[1] if self.inducing.ndim == 2 else None

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: number of inducing points per input, and the rule."""
        return {"num_neighbours": self.num_neighbours, "rule": self.rule}

    def _points(self) -> SeenPoints:
        """The prepared inducing points, recomputed if q, Z or the kernel has changed."""
        if torch.compiler.is_exporting() and self._prepared is not None:
            return self._prepared[0]  # prepared by an earlier prediction
        kept = self.inducing, self.q_mean, self.q_root
        if self._prepared is not None:
            points, parts, before = self._prepared
            same = all(one is other for one, other in zip(kept, parts, strict=False))
            if same and before == versions(parts):
                return points
        return self._prepare()

    @torch.no_grad()
    def _prepare(self) -> SeenPoints:
        points = SeenPoints(self.kernel, self.inducing, self.rule, self.jitter)
        kept = self.inducing, self.q_mean, self.q_root
        parts = [*kept, *self.kernel.parameters(), *self.kernel.buffers()]
        self._single = None
        # at once, for other threads that predict now
        self._prepared = points, parts, versions(parts)
        return points

    @torch.no_grad()
    def _single_input(self, points: SeenPoints) -> SingleInput | None:
        """Prediction of one row, made when the first one comes: it copies the points and q(u)."""
        single = self._single  # another thread may replace it
        if single is not None and single.points is points:
            return single
        distances = points.stationary is not None and points.search is not None
        if not distances or self.inducing.device.type != "cpu":
            return None
        self._single = single = SingleInput(points, self.q_mean, self.q_root, self._count)
        return single

    def predict(self, x: Tensor) -> Marginals:
        """Marginals of f at x (n, d). Cost: O(H^3) per row, and the search among M points.

        What all rows share, such as the search tree, is computed at the first call and cached.
        """
        points = self._points()
        if x.shape[0] == 1 and not x.requires_grad and not torch.compiler.is_exporting():
            single = self._single_input(points)
            found = None if single is None else single(x)
            if found is not None:
                mean, variance = found
                return Marginals(mean + self.mean(x).detach(), variance)
        return self._predict_rows(points, x)

    @property
    def _count(self) -> int:
        """Points that an input sees: H, or all if there are fewer."""
        return min(self.num_neighbours, len(self.inducing))

    def _predict_rows(self, points: SeenPoints, x: Tensor) -> Marginals:
        near = points.nearest(x, self._count)
        # arrays of all chunks: see ``gpx.inference.neighbour_conditional``
        mean = x.new_empty(x.shape[0], dtype=torch.float64)
        variance = torch.empty_like(mean)
        for part in self._slices(x):
            rows, seen = x[part], near[part]
            weights, rest = points.conditionals(rows, seen)
            root = self.q_root[seen].double()
            spread = (
                root * weights if root.ndim == 2 else (root.mT @ weights.unsqueeze(2)).squeeze(2)
            )
            mean[part] = (weights * self.q_mean[seen]).sum(1)
            variance[part] = rest + spread.square().sum(1)
        return Marginals(mean.to(x) + self.mean(x), variance.to(x))

    def _slices(self, x: Tensor) -> Iterator[slice]:
        h, width = self._count, 1 if self.q_root.ndim == 1 else self.q_root.shape[1]
        size = max(1, CHUNK_BYTES // (8 * h * (x.shape[1] + h + width)))
        return row_slices(x.shape[0], size, at_least_one=True)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (n, d) -> (num, n), by pathwise conditioning.

        f(x) = prior(x) + a(x)^T (u - prior(Z))_I with u ~ q and a prior function from random
        Fourier features. Like the mean, it jumps where the nearest inducing points change.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        size, num_inputs = self.inducing.shape
        prior = prior_functions(
            self.kernel, num, num_inputs, generator=generator, frequencies=frequencies
        )
        width = self.q_root.shape[-1]
        noise = self.q_mean.new_empty(num, width).normal_(generator=generator)
        root = self.q_root
        u = self.q_mean + (noise * root if root.ndim == 1 else noise @ root.mT)
        # K_I includes jitter, so u has to be given it too
        jitter = self.jitter * mean_variance(self.kernel, self.inducing)
        nugget = self.q_mean.new_empty(num, size).normal_(generator=generator)
        gap = u - prior(self.inducing) - jitter.sqrt() * nugget

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            points = self._points()
            near = points.nearest(x, self._count)
            found = x.new_empty(num, x.shape[0])
            for part in self._slices(x):
                weights, _ = points.conditionals(x[part], near[part])
                found[:, part] = (gap[:, near[part]] * weights.to(x)).sum(2)
            return prior(x) + self.mean(x) + found

        return paths
