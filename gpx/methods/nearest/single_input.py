"""The prediction at a single input, for those who ask one by one."""

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
from gpx.linalg.screened_nearest import ScreenedSearch, screened_search
from gpx.methods.nearest.compiled_input import (
    MOST_NEAR,
    CompiledInput,
    compiled_library,
    profile_number,
)
from gpx.methods.nearest.seen_points import FAR, SeenPoints

Numbers = NDArray[np.float64]

SAMPLE = (0.0, 1e-8, 0.1, 1.0, 3.0, 30.0, 1e3, 1e5)
"""Squared distances at which a profile must say the same of numpy and of torch."""


class _Argument(np.ndarray):
    """An array with the methods that a profile may call."""

    def sqrt(self) -> Any:
        """Elementwise."""
        return np.sqrt(self)

    def exp(self) -> Any:
        """Elementwise."""
        return np.exp(self)


def _profile_of(kernel: Stationary) -> Callable[[Numbers], Numbers]:
    """phi(r2) of arrays: by calls of numpy where the kernel's formula allows, else of torch."""

    def by_torch(r2: Numbers) -> Numbers:
        found: Numbers = kernel.of_squared_distance(torch.from_numpy(r2)).numpy()
        return found

    def by_numpy(r2: Numbers) -> Numbers:
        found: Numbers = kernel.of_squared_distance(r2.view(_Argument)).view(np.ndarray)
        return found

    sample = np.array(SAMPLE)
    try:
        found, wanted = by_numpy(sample), by_torch(sample)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # it calls what arrays lack
        return by_torch
    return by_numpy if np.allclose(found, wanted, rtol=1e-14, atol=1e-24) else by_torch


class SingleInput:
    """q(f) at one input: the same numbers as ``NearestPosterior.predict``, to rounding.

    A batch of one is some sixty calls of torch on tensors of a few numbers, and costs what the
    calls cost; calls of numpy and one of LAPACK cost a quarter of that, and one call of compiled
    code (``CompiledInput``), where the kernel is among those that it has, a sixteenth. Without it
    points of many columns are found by bounds where these leave most of them out
    (``ScreenedSearch``): for those who predict in batches that would not pay, since products of
    matrices compare with all at ten times the rate at which single rows are gathered.

    Args:
        points: with places and a search, on a CPU.
        q_mean (M,), q_root (M,) or (M, r): as of ``NearestPosterior``.
        num_neighbours: H.

    Cost: at the first input, that of preparing the bounds.
    """

    def __init__(
        self, points: SeenPoints, q_mean: Tensor, q_root: Tensor, num_neighbours: int
    ) -> None:
        assert points.stationary is not None
        assert points.search is not None
        assert points.places is not None
        self._points, self._search, self._count = points, points.search, num_neighbours
        kernel = points.stationary
        self._profile = _profile_of(kernel)
        self._unit: Numbers | None = None  # coordinates are inputs in this unit
        if kernel.is_radial and kernel.active_dims is None:
            self._unit = kernel.lengthscale.numpy()
        self._places: Numbers = points.places.numpy()
        self._precision = points.z.numpy().dtype
        self._screened: ScreenedSearch | None = None
        self._screening_tried = False
        self._q_mean: Numbers = q_mean.detach().double().numpy()
        self._q_root: Numbers = q_root.detach().double().numpy()
        self._scale, self._jitter = float(kernel.outputscale), float(points.jitter)
        self._compiled = self._compile(kernel)

    def _compile(self, kernel: Stationary) -> CompiledInput | None:
        if self._unit is None or not 0 < self._count <= MOST_NEAR:
            return None
        library = compiled_library()
        profile = None if library is None else profile_number(library, kernel, np.array(SAMPLE))
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
        """Mean and variance (1,) of f less its prior mean at x (1, d).

        None where the covariance of the points that it sees has no factor, or is no number.

        Cost: the search, and H (d H + H^2 / 3) operations.
        """
        compiled = self._compiled
        if compiled is not None and x.shape[1] == compiled.num_inputs and x.is_contiguous():
            made, near = torch.empty(2, 1, dtype=torch.float64), None
            if compiled.searched:
                near = self._search(self._points.coordinates(x.double()), self._count)
            wide = x.dtype == torch.float64
            at = None if near is None else near.data_ptr()
            if compiled(x.data_ptr(), wide, at, made.data_ptr()):
                mean, variance = (made if wide else made.float()).unbind()
                return mean, variance
        found = self._by_numpy(x)
        return None if found is None else (x.new_full((1,), found[0]), x.new_full((1,), found[1]))

    def _by_numpy(self, x: Tensor) -> tuple[float, float] | None:
        h = self._count
        if self._unit is not None and x.shape[1] == self._places.shape[1]:
            asked = x.numpy()[0].astype(np.float64) / self._unit
        else:  # whatever does not fit is said there
            asked = self._points.coordinates(x.double()).numpy()[0]
        near, to_input = self._nearest(asked)
        places = self._places[near]
        gap = places - asked
        if to_input[0] > FAR:
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
        if not math.isfinite(mean):  # LAPACK takes what is no number for a factor
            return None
        rest = max(self._scale - float(cross @ weights), 0.0)
        return mean, rest + float(spread @ spread)

    def _nearest(self, asked: Numbers) -> tuple[NDArray[np.int64], Numbers]:
        """Points nearest to coordinates (d,), nearest first, and squared distances: (H,) each."""
        if not self._screening_tried:
            self._screening_tried = True
            self._screened = screened_search(self._places, self._count)
        if self._screened is not None:
            found = self._screened.search_one(asked, self._count)
            if found is not None:
                return found
        near = self._search.search_one(asked.astype(self._precision), self._count)
        gap = self._places[near] - asked
        return near, np.einsum("hd,hd->h", gap, gap)
