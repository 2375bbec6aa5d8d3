"""Scaling of rows with different noise variances to a common one."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ScaledRows(NamedTuple):
    """Residual with a common noise variance, and the scale to apply to rows of A^T.

    Attributes:
        scale (n,): factor of each row of A^T (``BlockStore``), float64; None: all ones.
        residual (n,): scaled.
        noise (): common noise variance.
    """

    scale: Tensor | None
    residual: Tensor
    noise: Tensor


def scale_to_common_noise(noise: Tensor, residual: Tensor) -> ScaledRows:
    """Scale each row to noise variance one; unchanged if there is one variance for all rows.

    Args:
        noise () or (n,): variances, float64.
        residual (n,): r = y - m(x).
    """
    if not noise.ndim:
        return ScaledRows(None, residual, noise)
    scale = noise.rsqrt()
    return ScaledRows(scale, residual * scale.to(residual), noise.new_ones(()))
