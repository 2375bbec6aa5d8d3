"""Conditionals of the latent function given the noisy values of a few nearby rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpx.backends import row_slices
from gpx.backends.entries import at_precision_of
from gpx.inference.batched_covariance import batched_covariances
from gpx.inference.local_gaussian import conditionals, prior_divergence
from gpx.inference.neighbour_likelihood import CHUNK_BYTES, noisy_factor
from gpx.inference.padded_rows import batch_bytes
from gpx.kernels.base import Kernel
from gpx.kernels.categorical import Categorical
from gpx.kernels.constant import Constant
from gpx.kernels.convolutional import Convolutional
from gpx.kernels.stationary import Stationary
from gpx.kernels.warped import Warped
from gpx.linalg.nearest import NearestSearch
from gpx.linalg.prepared import versions

OTHER_UNITS = 2.0
"""Distance that counts as one lengthscale in inputs that are used only by terms of the kernel
without lengthscales, such as linear ones: such functions are smooth, but far rows say little about
their curvature."""


class Conditional(NamedTuple):
    """f at each query given the values of its group, without the prior mean.

    Attributes:
        mean (q,), variance (q,): of f; the variance is not negative.
        weights (q, k): mean = sum_j weights_j residual_j over the rows of the group.
        near (q, k): those rows.
    """

    mean: Tensor
    variance: Tensor
    weights: Tensor
    near: Tensor


def near_coordinates(kernel: Kernel, x: Tensor) -> Tensor:
    """Coordinates in which near rows are strongly correlated: x (n, d) -> (n, q), no gradients.

    The coordinates of all parts of the kernel that fall with a distance, concatenated: (warped)
    inputs in units of their lengthscales, and the inputs of categories, so far apart that the
    squared exponential of that distance is their correlation. Columns that only other parts see
    follow in ``OTHER_UNITS``. x itself for a kernel without a part that falls.
    """
    with torch.no_grad():
        found = at_precision_of(x, kernel, lambda own: _coordinates(own, x))
        if not found:
            return x
        near, others = _columns_by_distance(kernel, x.shape[1])
        left = sorted(others - near)
        return torch.cat([*found, x[:, left] / OTHER_UNITS] if left else found, 1)


def _coordinates(part: nn.Module, x: Tensor) -> list[Tensor]:
    if isinstance(part, Stationary):
        return [part.coordinates(x if part.active_dims is None else x[:, part.active_dims])]
    if isinstance(part, Categorical):
        # categories differ by one in two columns of 0 and 1, or in one column of their numbers
        return [
            x[:, group] * math.sqrt(2.0 / min(len(group), 2)) / lengthscale.sqrt().to(x)
            for group, lengthscale in zip(_groups(part, x.shape[1]), part.lengthscale, strict=True)
        ]
    if isinstance(part, Warped):
        like = next(part.warp.parameters(), x)
        return _coordinates(part.kernel, part.warped(x.to(like.dtype)).to(x.dtype))
    if isinstance(part, Convolutional):
        return []  # its stationary kernel is one of patches
    return [found for child in part.children() for found in _coordinates(child, x)]


def _groups(part: Categorical, width: int) -> list[list[int]]:
    return [list(range(width))] if part.groups is None else list(map(list, part.groups))


def _columns_by_distance(part: nn.Module, width: int) -> tuple[set[int], set[int]]:
    """Columns, of so many, that parts with coordinates of their own see, and that others see."""
    if isinstance(part, Categorical):
        return {column for group in _groups(part, width) for column in group}, set()
    if isinstance(part, Warped):
        return set(range(width)), set()
    inner = [child for child in part.modules() if isinstance(child, Kernel) and child is not part]
    if isinstance(part, Kernel) and (not inner or isinstance(part, Convolutional)):
        seen = set() if isinstance(part, Constant) else set(part.columns(width))
        return (seen, set()) if isinstance(part, Stationary) else (set(), seen)
    pairs = [_columns_by_distance(child, width) for child in part.children()]
    near, others = zip(*pairs, strict=True) if pairs else ((), ())
    return set().union(*near), set().union(*others)


class LocalSystem(NamedTuple):
    """Gaussian values at h points of g groups, and f at q queries of each; differentiable once.

    Attributes:
        weights (g, h, q): E[f | values] = weights^T values; zero for absent points.
        rest (g, q): variance of f given the values, not negative.
        inner (g, h, h): covariances of the values, for gradients: with their noise if it has one.
        factor (g, h, h): lower Cholesky factors of the covariances with the noise; no gradient.
    """

    weights: Tensor
    rest: Tensor
    inner: Tensor
    factor: Tensor

    def prior_divergence(self, mean: Tensor, root: Tensor) -> Tensor:
        """KL(N(m, S) || N(0, K)) of the values, in nats, plus half of log|S|: (g,).

        Args:
            mean (g, h): m.
            root (g, h, r): R, S = R R^T; (g, h): a diagonal one.

        Cost: g h^2 (2 h + r) operations.
        """
        return prior_divergence(self.inner, self.factor, mean, root)


def local_system(
    kernel: Kernel,
    points: Tensor,
    queries: Tensor,
    noise: Tensor,
    there: Tensor | None = None,
    out: Tensor | None = None,
    *,
    hint: str = "",
) -> LocalSystem:
    """Conditionals of f at the queries of groups of points.

    Args:
        kernel: covariance function; gradients reach its parameters and both inputs.
        points (g, h, d), queries (g, q, d).
        noise () or (g, h): variance added to every value, noise or jitter; gradients reach it.
        there (g, h): False for absent points of smaller groups; None: all are present.
        out (g, h, h): receives the factors; None: a new tensor.
        hint: one more thing to try if a factorisation fails, for the error message.

    Raises:
        NotPositiveDefinite: the covariance of a group has no factor.

    Cost: g h^2 (h / 3 + 2 q) operations and g h (h + q) kernel entries.
    """
    g, _, d = points.shape
    if not torch.compiler.is_exporting() and g == 1:
        inner = kernel.evaluate(points[0])[None]
        cross = kernel.evaluate(points[0], queries[0])[None]
    else:
        inner = batched_covariances(kernel, points)
        cross = batched_covariances(kernel, points, queries)
    factor = noisy_factor(inner.detach(), noise.detach(), there, out, hint=hint)
    if noise.requires_grad:  # with that of the covariances, of which it is part
        inner = inner + torch.diag_embed(noise.expand(points.shape[:2]))
    if there is not None:
        cross = cross * there.unsqueeze(2)
    prior = kernel.diagonal(queries.reshape(-1, d)).view(g, queries.shape[1])
    weights, rest = conditionals(inner, factor, cross, prior, there)
    return LocalSystem(weights, rest.clamp_min(0.0), inner, factor)


def neighbour_conditional(
    kernel: Kernel, noise: Tensor, x: Tensor, residual: Tensor, queries: Tensor, near: Tensor
) -> Conditional:
    """Mean and variance of f at ``queries`` given noisy values of the rows ``near`` to each.

    Args:
        kernel: covariance function.
        noise () or (n,): noise variance of all rows or of each.
        x (n, d), residual (n,): data; y less its prior mean.
        queries (q, d): gradients reach them.
        near (q, k): rows of x; -1 where there are fewer.

    Raises:
        NotPositiveDefinite: the covariance of a group with its noise has no factor.

    Cost: q k^3 / 3 operations and q k^2 kernel entries; memory of a chunk of groups, with
    gradients of all groups.
    """
    # arrays of all chunks: small results that live on between the large arrays of the chunks would
    # keep the C library from using the memory of freed ones again
    count, k = near.shape
    weights = x.new_empty(count, k)
    mean, variance = x.new_empty(count), x.new_empty(count)
    chunk = min(CHUNK_BYTES, batch_bytes(x.device))
    size = max(1, chunk // (x.element_size() * (k + 1) ** 2))
    # derivatives need the factors of every chunk
    kept = queries.requires_grad and torch.is_grad_enabled()
    new = kept or torch.compiler.is_exporting()
    factors = None if new else x.new_empty(min(size, count), k, k)
    present = near >= 0
    # masks are two more passes over the covariances; a program keeps them
    some_absent = torch.compiler.is_exporting() or not bool(present.all())
    for part in row_slices(count, size, at_least_one=True):
        rows, asked = near[part], queries[part]
        inputs, there = x[rows.clamp_min(0)], present[part] if some_absent else None
        own_noise = noise[rows.clamp_min(0)] if noise.ndim else noise
        out = None if factors is None else factors[: len(rows)]
        system = local_system(kernel, inputs, asked.unsqueeze(1), own_noise, there, out)
        weights[part] = system.weights.squeeze(2)
        mean[part] = (weights[part] * residual[rows.clamp_min(0)]).sum(1)
        variance[part] = system.rest.squeeze(1)
    return Conditional(mean, variance, weights, near)


class NearRows:
    """The search for the nearest of the rows x (n, d), prepared for many calls.

    Args:
        kernel: its lengthscales are the units of distance.
        x (n, d): the rows.

    Cost: O(n log n) once for a tree, on a CPU.
    """

    def __init__(self, kernel: Kernel, x: Tensor) -> None:
        self._kernel, self._x, self._versions = kernel, x, _versions(kernel, x)
        self._search = NearestSearch(near_coordinates(kernel, x.detach().double()))
        self._size = len(x)

    @classmethod
    def of(cls, known: NearRows | None, kernel: Kernel, x: Tensor) -> NearRows:
        """``known`` if it is of this kernel and these rows, both unchanged; else a new one.

        Not to be kept where a program is exported, whose tensors have no values.
        """
        if (
            known is not None
            and known._kernel is kernel
            and known._x is x
            and known._versions == _versions(kernel, x)
        ):
            return known
        return cls(kernel, x)

    def __call__(self, queries: Tensor, count: int) -> Tensor:
        """The ``count`` rows (q, count), at most all, nearest to each of ``queries`` (q, d)."""
        asked = near_coordinates(self._kernel, queries.detach().double())
        return self._search(asked, min(count, self._size))


def _versions(kernel: Kernel, x: Tensor) -> list[int]:
    """Numbers that change with the values of x, and of the kernel's parameters and buffers."""
    if torch.compiler.is_exporting():
        return []
    return versions([x, *kernel.parameters(), *kernel.buffers()])


def local_regression(
    kernel: Kernel, noise: Tensor, x: Tensor, residual: Tensor, queries: Tensor, count: int = 64
) -> Conditional:
    """``neighbour_conditional`` on the ``count`` rows nearest to each query, in float64."""
    x, queries = x.double(), queries.double()
    near = NearRows(kernel, x)(queries, count)
    return neighbour_conditional(kernel, noise.double(), x, residual.double(), queries, near)
