"""Prediction at a single input by compiled code (``single_input.c``), if there is a compiler."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpx.backends.native import native_library
from gpx.kernels.stationary import Stationary

logger = logging.getLogger(__name__)

Numbers = NDArray[np.float64]

SOURCE = Path(__file__).with_name("single_input.c")
MAX_NEIGHBOURS = 32
"""Largest H; for more neighbours LAPACK and matrix products are faster."""
PROFILES = {"rbf": 0, "matern12": 1, "matern32": 2, "matern52": 3}
"""Numbers of the kernel profiles in the C file."""
COARSE_COLUMNS, COARSE_NUMBERS = 32, 2**15
"""With at least this many columns and numbers, points are first compared as 8-bit integers."""
MAX_INTEGER = 8191
"""Largest integer of a rounded query; smaller if sums of products would overflow."""


class _Seen(ctypes.Structure):
    """``struct seen`` of the C file."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("points", "columns", "padded", "near", "width")),
        *((name, ctypes.c_long) for name in ("profile", "most")),
        *((name, ctypes.c_void_p) for name in ("unit", "places", "by_column", "coarse", "centre")),
        *((name, ctypes.c_void_p) for name in ("step", "half_square", "size", "error")),
        *((name, ctypes.c_void_p) for name in ("mean", "root")),
        *((name, ctypes.c_double) for name in ("scale", "jitter")),
    )


class CompiledInput:
    """Mean and variance of f at one input, by one call.

    The nearest points are exact. Up to some ten thousand numbers all points are compared in
    float64. More are first compared as 8-bit integers with a bound on the rounding error, and
    exactly where that does not decide.

    Args:
        places (M, q): inputs of the inducing points in units of ``unit``.
        unit (q,) or (1,): the lengthscales.
        q_mean (M,), q_root (M,) or (M, r): as in ``NearestPosterior``.
        profile: number of the kernel's profile in ``PROFILES``.
        scale, jitter: the kernel's variance, and the jitter added to the diagonal of covariances.
        searched: whether the caller searches and passes the nearest points.

    Cost: O(M q) once; per call as ``SingleInput``, without the overhead of NumPy calls.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        places: Numbers,
        unit: Numbers,
        q_mean: Numbers,
        q_root: Numbers,
        num_neighbours: int,
        profile: int,
        scale: float,
        jitter: float,
        searched: bool,
    ) -> None:
        m, q = places.shape
        self.num_inputs, self.searched = q, searched
        self._kept: dict[str, NDArray[Any]] = {  # arrays that the structure points to
            "places": places,
            "unit": np.broadcast_to(unit, q),
            "mean": q_mean,
            "root": q_root,
        }
        padded, most = 0, 0
        if not searched and q >= COARSE_COLUMNS and m * q > COARSE_NUMBERS:
            padded = -(-q // 32) * 32
            most = min(MAX_INTEGER, (2**31 - 1) // (127 * padded))
            self._kept |= _as_integers(places, padded)
        elif not searched:
            self._kept["by_column"] = places.T
        self._kept = {name: np.ascontiguousarray(part) for name, part in self._kept.items()}
        sizes = {"points": m, "columns": q, "padded": padded, "near": num_neighbours}
        self._seen = _Seen(
            **sizes,
            most=most,
            **{name: part.ctypes.data for name, part in self._kept.items()},
            width=0 if q_root.ndim == 1 else q_root.shape[1],
            profile=profile,
            scale=scale,
            jitter=jitter,
        )
        self._at = ctypes.addressof(self._seen)
        self._run = library.posterior_at

    def __call__(self, x: int, wide: bool, near: int | None, found: int) -> bool:
        """Write mean and variance; returns whether this succeeded.

        Args:
            x: address of the input's ``num_inputs`` numbers, in float64 (wide) or float32.
            near: address of the nearest points (H,), int64, if ``searched``.
            found: address of two float64 numbers for the results.
        """
        return not self._run(self._at, x, wide, near, found)


def _as_integers(places: Numbers, padded: int) -> dict[str, NDArray[Any]]:
    """Centred places (M, q) as 8-bit integers times a step per row, with the rounding errors."""
    centre = places.mean(0)
    centred = places - centre
    largest = np.abs(centred).max(1)
    step = np.where(largest > 0.0, largest / 127.0, 1.0)
    whole = np.zeros((len(places), padded), np.int8)
    whole[:, : places.shape[1]] = np.rint(centred / step[:, None])
    rounded = step[:, None] * whole[:, : places.shape[1]]
    return {
        "coarse": whole,
        "centre": centre,
        "step": step,
        "half_square": 0.5 * np.einsum("mq,mq->m", centred, centred),
        "size": np.linalg.norm(rounded, axis=1),
        "error": np.linalg.norm(centred - rounded, axis=1),
    }


@cache
def compiled_library() -> ctypes.CDLL | None:
    """The compiled C file; None without a compiler."""
    library = native_library(SOURCE)
    if library is None:
        return None
    library.posterior_at.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_void_p),
    )
    library.posterior_at.restype = ctypes.c_int
    library.profiles_of.argtypes = (*(ctypes.c_long,) * 2, *(ctypes.c_void_p,) * 2)
    library.profiles_of.restype = None
    return library


def profile_number(library: ctypes.CDLL, kernel: Stationary, r2: Numbers) -> int | None:
    """Number of the kernel's profile in ``PROFILES``; None if it has none or results differ.

    Args:
        r2: squared distances at which compiled and Python profiles are compared.
    """
    number = PROFILES.get(kernel.radial_profile or "")
    if number is None:
        return None
    found = np.empty_like(r2)
    library.profiles_of(number, len(r2), r2.ctypes.data, found.ctypes.data)
    wanted = kernel.of_squared_distance(torch.from_numpy(r2)).numpy()
    if np.allclose(found, wanted, rtol=1e-13, atol=1e-24):
        return number
    logger.warning("the compiled %s profile is off and not used", kernel.radial_profile)
    return None
