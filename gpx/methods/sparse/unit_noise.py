"""Rows whose noise variances differ, scaled so that one variance serves all of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RowsOfOneNoise(NamedTuple):
    """Rows of A^T and of the residual, to be scaled alike, and their common noise variance.

    Attributes:
        scale (n,): factors of the rows of A^T (``BlockStore``), float64; None: ones.
        residual (n,): scaled.
        noise (): of the scaled rows.
    """

    scale: Tensor | None
    residual: Tensor
    noise: Tensor


def rows_of_one_noise(noise: Tensor, residual: Tensor) -> RowsOfOneNoise:
    """Rows unchanged where they share a noise variance; else each scaled to noise of variance one.

    Args:
        noise () or (n,): variances, float64.
        residual (n,): r = y - m(x).
    """
    if not noise.ndim:
        return RowsOfOneNoise(None, residual, noise)
    scale = noise.rsqrt()
    return RowsOfOneNoise(scale, residual * scale.to(residual), noise.new_ones(()))
