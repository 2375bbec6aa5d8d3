"""Fourier features and their products by a compiled pass (``fourier.c``), where available."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gpx.backends.native import address, has_memory, native_library
from gpx.errors import ShapeError

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("fourier.c")
DEFINES = {torch.float32: (), torch.float64: ("DOUBLE",)}
MAX_INPUTS = 16
"""Largest number of inputs for which the compiled pass computes the angles itself; with more, a
matrix product is faster."""
_SIZE, _ARRAY = ctypes.c_long, ctypes.c_void_p


class FourierPass:
    """The compiled pass for one dtype.

    Exactness: that of torch's cosine and sine (last places differ) for angles up to 1e4 in float32
    and 1e6 in float64. The order of summation depends only on the number of threads.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._run = library.fourier_pass
        self._run.argtypes = (
            *(_SIZE, _SIZE, _SIZE, _ARRAY, _ARRAY, _ARRAY, ctypes.c_double),
            *(_ARRAY, _SIZE, _ARRAY, _SIZE, _ARRAY, _ARRAY, _SIZE, _ARRAY, _ARRAY, ctypes.c_int),
        )
        self._run.restype = None

    def __call__(
        self,
        frequencies: Tensor,
        inputs: Tensor,
        *,
        angles: Tensor | None = None,
        scale: float = 1.0,
        weights: Tensor | None = None,
        directions: Tensor | None = None,
        gradient: Tensor | None = None,
        cosines: Tensor | None = None,
        sines: Tensor | None = None,
    ) -> Tensor | None:
        """Products with scale * [cos, sin] of angles; computes the parts whose arguments are given.

        Args:
            frequencies (R, d), inputs (d, n): contiguous.
            angles (R, n): their product, if known; ``sines`` may be the same memory.
            scale: factor of the features.
            weights (2, R): for the product over cosines and sines.
            directions (k, n), gradient (k, 2, R): ``gradient`` receives the products of the
                features with each of at most ``MAX_INPUTS + 1`` directions.
            cosines, sines (R, n): receive the features.

        Returns:
            (n,) with weights, else None.

        Raises:
            ShapeError: an array of another size or layout than the pass would read.
            DTypeError: another dtype or device.
        """
        (d, n), rows = inputs.shape, frequencies.shape[0]
        threads = torch.get_num_threads()
        partial = None if weights is None else inputs.new_zeros(threads, n)
        count = 0 if directions is None else directions.shape[0]
        if count > MAX_INPUTS + 1:
            raise ShapeError(f"Fourier features: {count} directions, at most {MAX_INPUTS + 1}")
        if n == 0 and gradient is not None:
            gradient.zero_()  # without rows the pass writes nothing

        def of(array: Tensor | None, size: int) -> int | None:
            if array is None:
                return None
            return address(array, size, self.dtype, "Fourier features", strided=True)

        self._run(
            *(n, d, rows, of(inputs, d * n), of(frequencies, rows * d), of(angles, rows * n)),
            *(scale, of(weights, 2 * rows), 0 if weights is None else weights.stride(0)),
            *(of(partial, threads * n), count, of(directions, count * n)),
            *(of(gradient, 2 * count * rows), 0 if gradient is None else gradient.stride(-2)),
            *(of(cosines, rows * n), of(sines, rows * n), threads),
        )
        if partial is None or threads == 1:
            return None if partial is None else partial[0]
        return partial.sum(0)


@cache
def _checked(dtype: torch.dtype) -> FourierPass | None:
    """The compiled pass, checked once against torch's cosines and sines; None if not usable."""
    library = native_library(SOURCE, DEFINES[dtype])
    if library is None:
        return None
    found = FourierPass(library, dtype)
    inputs = torch.linspace(-9.0, 9.0, 600, dtype=dtype)[None, :]
    frequencies = torch.tensor([[1.0], [-3.0]], dtype=dtype)
    waves = torch.empty(2, 2, 600, dtype=dtype)
    found(frequencies, inputs, cosines=waves[0], sines=waves[1])
    angles = frequencies @ inputs
    error = float((waves - torch.stack((angles.cos(), angles.sin()))).abs().max())
    if not error < 100 * torch.finfo(dtype).eps:
        logger.warning("the compiled Fourier features are off by %.1e and not used", error)
        return None
    logger.info("random features: compiled for this machine")
    return found


def fourier_pass(like: Tensor) -> FourierPass | None:
    """The compiled pass for arrays like this one; None where torch operations are used."""
    if not has_memory(like) or like.dtype not in DEFINES:
        return None
    return _checked(like.dtype)
