"""Fast prediction at a single input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv
from torch import Tensor

from gpx.kernels.stationary import Stationary
from gpx.methods.nearest.compiled_input import (
    MAX_NEIGHBOURS,
    CompiledInput,
    compiled_library,
    profile_number,
)
from gpx.methods.nearest.seen_points import FAR_SQUARED, SeenPoints

Numbers = NDArray[np.float64]

TEST_DISTANCES = (0.0, 1e-8, 0.1, 1.0, 3.0, 30.0, 1e3, 1e5)
"""Squared distances at which a profile must give the same for NumPy and for torch."""


class _Argument(np.ndarray):
    """A NumPy array with the tensor methods that a kernel's profile may call."""

    def sqrt(self) -> Any:
        """Elementwise."""
        return np.sqrt(self)

    def exp(self) -> Any:
        """Elementwise."""
        return np.exp(self)


def _profile_of(kernel: Stationary) -> Callable[[Numbers], Numbers]:
    """phi(r2) of arrays, by NumPy if the kernel's formula allows it, otherwise by torch."""

    def by_torch(r2: Numbers) -> Numbers:
        found: Numbers = kernel.of_squared_distance(torch.from_numpy(r2)).numpy()
        return found

    def by_numpy(r2: Numbers) -> Numbers:
        found: Numbers = kernel.of_squared_distance(r2.view(_Argument)).view(np.ndarray)
        return found

    sample = np.array(TEST_DISTANCES)
    try:
        found, wanted = by_numpy(sample), by_torch(sample)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # needs methods of tensors
        return by_torch
    return by_numpy if np.allclose(found, wanted, rtol=1e-14, atol=1e-24) else by_torch


class SingleInput:
    """q(f) at one input, equal to ``NearestPosterior.predict`` up to rounding.

    For a batch of one, the overhead of about sixty torch calls dominates. NumPy and one LAPACK call
    take a quarter of that time, and compiled code (``CompiledInput``), for the kernels that it has,
    a sixteenth.

    Args:
        points: with coordinates and a search, on a CPU; kept as an attribute.
        q_mean (M,), q_root (M,) or (M, r): as in ``NearestPosterior``.
        num_neighbours: H.
    """

    def __init__(
        self, points: SeenPoints, q_mean: Tensor, q_root: Tensor, num_neighbours: int
    ) -> None:
        assert points.stationary is not None
        assert points.search is not None
        assert points.places is not None
        self.points, self._search, self._count = points, points.search, num_neighbours
        kernel = points.stationary
        self._profile = _profile_of(kernel)
        self._unit: Numbers | None = None  # coordinates are inputs in this unit
        if kernel.is_radial and kernel.active_dims is None:
            self._unit = kernel.lengthscale.numpy()
        self._places: Numbers = points.places.numpy()
        self._precision = points.z.numpy().dtype
        self._q_mean: Numbers = q_mean.detach().double().numpy()
        self._q_root: Numbers = q_root.detach().double().numpy()
        self._scale, self._jitter = float(kernel.outputscale), float(points.jitter)
        self._compiled = self._compile(kernel)

    def _compile(self, kernel: Stationary) -> CompiledInput | None:
        if self._unit is None or not 0 < self._count <= MAX_NEIGHBOURS:
            return None
        library = compiled_library()
        profile = (
            None if library is None else profile_number(library, kernel, np.array(TEST_DISTANCES))
        )
        if library is None or profile is None:
            return None
        return CompiledInput(
            library,
            places=self._places,
            unit=self._unit,
            q_mean=self._q_mean,
            q_root=self._q_root,
            num_neighbours=self._count,
            profile=profile,
            scale=self._scale,
            jitter=self._jitter,
            searched=self._search.has_tree,
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance (1,) of f minus its prior mean at x (1, d).

        None if the covariance of the nearest points has no Cholesky factor or is not finite.

        Cost: the search, and H (d H + H^2 / 3) operations.
        """
        compiled = self._compiled
        x = x.resolve_neg()  # addresses below are of the numbers themselves
        if compiled is not None and x.shape[1] == compiled.num_inputs and x.is_contiguous():
            made, near = torch.empty(2, 1, dtype=torch.float64), None
            if compiled.searched:
                near = self._search(self.points.coordinates(x.double()), self._count)
            wide = x.dtype == torch.float64
            at = None if near is None else near.data_ptr()
            if compiled(x.data_ptr(), wide, at, made.data_ptr()):
                mean, variance = (made if wide else made.float()).unbind()
                return mean, variance
        found = self._by_numpy(x)
        return None if found is None else (x.new_full((1,), found[0]), x.new_full((1,), found[1]))

    def _by_numpy(self, x: Tensor) -> tuple[float, float] | None:
        h = self._count
        if self._unit is not None:
            asked = x.numpy()[0].astype(np.float64) / self._unit
        else:
            asked = self.points.coordinates(x.double()).numpy()[0]
        near = self._search.search_one(asked.astype(self._precision), h)
        places = self._places[near]
        gap = places - asked
        to_input = np.einsum("hd,hd->h", gap, gap)
        if to_input[0] > FAR_SQUARED:
            gap = places - places[0]
        products = gap @ gap.T
        squares = products.diagonal()
        r2 = np.empty((h + 1, h))  # of the points among each other, and of the input to them
        np.add(squares, squares[:, None] - 2.0 * products, out=r2[:h])
        np.maximum(r2, 0.0, out=r2)
        r2[h] = to_input
        values: Numbers = self._scale * self._profile(r2)
        cross = values[h]
        values.flat[: h * h : h + 1] += self._jitter  # the diagonal of the first h rows
        _, weights, failed = dposv(values[:h], cross)
        if failed:
            return None
        root = self._q_root[near]
        spread = root * weights if root.ndim == 1 else root.T @ weights
        mean = float(weights @ self._q_mean[near])
        if not math.isfinite(mean):  # LAPACK does not report NaN as a failure
            return None
        rest = max(self._scale - float(cross @ weights), 0.0)
        return mean, rest + float(spread @ spread)
