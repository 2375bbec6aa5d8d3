"""A warning where float32 has too few digits for predictions from inducing points."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.warned_line import users_line

NOISE_SHARE = 0.05
"""Rounding of the kernel's variance, as a share of the noise variance, above which there is a
warning: means and standard deviations of a row then depend visibly on the rows beside it."""

ROWS = 1000
"""Rows at which the kernel's variance is looked at."""


@torch.no_grad()
def warn_of_few_digits(kernel: Kernel, noise: Tensor, x: Tensor) -> None:
    """Warn if the noise is so small that float32 loses it beside the variance of the functions.

    A predictive variance is a difference of numbers as large as the kernel's variance v, so that
    it is off by about v eps, whatever the factorisations are computed in. Other dtypes, and rows
    that are read from files, are not looked at.

    Args:
        noise: variance () of all rows, or of each row or output.
        x (n, d): training rows.
    """
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or not len(x):
        return
    variances = torch.stack([kernel.diagonal(x[:ROWS]).max().double(), noise.min().double()])
    prior, least = variances.tolist()
    if prior * torch.finfo(x.dtype).eps > NOISE_SHARE * least:
        warnings.warn(
            "float32 has too few digits for noise this far below the variance of the functions: "
            "predicted means and intervals may be off by some percent of their width and more; "
            "take dtype=float64",
            stacklevel=users_line(),
        )
