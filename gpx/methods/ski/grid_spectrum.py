"""Approximate log-determinants of W K W^T + noise I from the eigenvalues of the grid's matrix K.

They treat the data as a sample of the grid points. They are accurate if the data are spread like
the grid and the grid resolves the kernel, ignore where the data lie, and are no bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg import RegularAxis, circulant_approximation, enough_wraps, whittle
from gpx.linalg.kronecker import kronecker_vector
from gpx.methods.ski.covariance import AxisCovariance, GridCovariance, kernel_at_lags
from gpx.methods.ski.grid import InterpolationGrid

Circulant = Literal["whittle", "strang", "chan", "tyrtyshnikov"]

MAX_DENSE_POINTS = 4000
"""Most points of an axis whose eigenvalues are computed from the dense matrix."""


def grid_eigenvalues(covariance: GridCovariance) -> Tensor:
    """All eigenvalues of K_UU (m,), differentiable.

    Raises:
        ConfigError: an axis too long for a dense matrix, or several axes without a product kernel.
    Cost: O(sum m_l^3).
    """
    if isinstance(covariance, AxisCovariance):
        return kronecker_vector([torch.linalg.eigvalsh(axis) for axis in covariance.tensors])
    lags = covariance.tensors[0]
    if lags.ndim > 1 or len(lags) > MAX_DENSE_POINTS:
        raise ConfigError(
            f"the eigenvalues of a grid of {' x '.join(map(str, lags.shape))} points need a kernel "
            f"that factors over the inputs, or one axis of at most {MAX_DENSE_POINTS:,} points; "
            "use logdet=circulant"
        )
    place = torch.arange(len(lags), device=lags.device)
    return torch.linalg.eigvalsh(lags[(place.unsqueeze(1) - place).abs()])


def circulant_eigenvalues(
    covariance: GridCovariance,
    grid: InterpolationGrid,
    kernel: Kernel,
    kind: Circulant,
    wraps: int | None,
) -> Tensor:
    """Eigenvalues (m,) of a circulant approximation of K_UU, clipped at zero; differentiable.

    Args:
        kind: "whittle" wraps the kernel around the grid; the others keep its lags.
        wraps: of "whittle"; None: until the kernel has decayed, at most 100 of one axis.

    Raises:
        ConfigError: points that are not equidistant; "tyrtyshnikov" on several axes without a
            kernel that factors.
    Cost: O(m log m), and for "whittle" (2 wraps + 1)^d evaluations of the kernel per point.
    """
    axes = [axis for axis in grid.axes if isinstance(axis, RegularAxis)]
    if len(axes) < len(grid.axes):
        raise ConfigError("circulant log-determinants need an equidistant grid")
    dims = tuple(range(len(axes)))
    if kind == "whittle":
        device = covariance.variance.device
        at = kernel_at_lags(kernel)
        spacing = torch.tensor(grid.spacing, dtype=torch.float64, device=device)

        def values(lags: Tensor) -> Tensor:
            return at(lags.reshape(-1, len(axes))).reshape(lags.shape[:-1])

        if wraps is None:
            most = 100 if len(axes) == 1 else 3
            eye = spacing.new_ones(len(axes)).diag()
            wraps = 1
            for i, axis in enumerate(axes):
                along = partial(_along, at, eye[i])
                found = enough_wraps(along, axis.spacing * axis.size, most=most)
                wraps = max(wraps, found)
        column = whittle(values, spacing, grid.shape, wraps=wraps)
        return torch.fft.fftn(column, dim=dims).real.flatten().clamp_min(0.0)
    if isinstance(covariance, AxisCovariance):
        spectra = [
            torch.fft.fft(circulant_approximation(axis[0], kind)).real
            for axis in covariance.tensors
        ]
        return kronecker_vector([s.clamp_min(0.0) for s in spectra])
    column = covariance.tensors[0]
    column = circulant_approximation(column, kind, len(axes))
    return torch.fft.fftn(column, dim=dims).real.flatten().clamp_min(0.0)


def _along(at: Callable[[Tensor], Tensor], direction: Tensor, lags: Tensor) -> Tensor:
    """The kernel at lags (r, 1) along one axis."""
    return at(lags.to(direction) * direction)


def scaled_logdet(eigenvalues: Tensor, noise: Tensor, num_data: int, pad: bool = True) -> Tensor:
    """Sum of log(n / m eigenvalue + noise) over the min(n, m) largest, plus (n - m)^+ log noise.

    Args:
        eigenvalues (m,): of K_UU.
        num_data: n.
        pad: include the last term; False only to reproduce published figures, which lack it.

    Source: Hultin 2017, section 3.2.2; the last term is a correction.
    """
    m = len(eigenvalues)
    top = eigenvalues if num_data >= m else eigenvalues.topk(num_data).values
    found = (top.clamp_min(0.0) * (num_data / m) + noise).log().sum()
    return found + (num_data - m) * noise.log() if pad and num_data > m else found
