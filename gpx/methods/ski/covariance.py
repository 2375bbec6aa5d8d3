"""A kernel's matrix on a grid, as an operator with the structure that the kernel and grid allow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, reduce

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.backends import Entries
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg import RegularAxis
from gpx.linalg.kronecker import kronecker_vector
from gpx.methods.ski.axis_spectra import AxisSpectra
from gpx.methods.ski.control_variate import reflected
from gpx.methods.ski.grid import InterpolationGrid, axis_points
from gpx.methods.ski.low_rank import EigenPart, LowRankPart, PivotedPart
from gpx.methods.ski.waves import WavePart
from gpx.operators import BlockToeplitz, Kronecker, Toeplitz, grid_lags

MOST_AXIS_POINTS = 1500
"""Longest axis that is a dense matrix: beyond it FFTs are faster, and its eigenvectors slow."""
PROBED_LAGS = 9
"""Lags of each axis at which a kernel is asked whether it factors."""
FACTORS = 1e-10
"""Relative difference from a product over the axes that is rounding."""


class GridCovariance(ABC):
    """K_UU of a stationary kernel, differentiable in its parameters.

    Attributes:
        operator (m, m): K_UU.
        tensors: what it is made of; its gradients are those of ``operator``.
        variance (): k(0).
    """

    operator: LinearOperator
    tensors: tuple[Tensor, ...]
    variance: Tensor

    @abstractmethod
    def low_rank(
        self, rank: int, tolerance: float, most_pivots: int, waves: int = 0
    ) -> LowRankPart:
        """C with C^T C near K_UU, at most ``rank`` rows; fewer at a trace error of ``tolerance``.

        Args:
            most_pivots: rows at most where C is an array (r, m).
            waves: most waves (``WavePart``), in the place of all that, where the grid has one axis
                and they are possible. No posterior can hold them.
        """

    def lags(self) -> Tensor | None:
        """K at every lag (m_1, ..., m_d), differentiable; None off a regular grid."""
        return None

    def multiply(self, vectors: Tensor) -> Tensor:
        """K_UU times vectors (m, c), without a graph."""
        with torch.no_grad():
            found: Tensor = self.operator.matmul(vectors)
        return found

    @abstractmethod
    def detached(self) -> LinearOperator:
        """The operator of detached tensors that want gradients."""

    def gradient(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """Of sum_c left_c^T K_UU right_c (m, c), by each of ``tensors``."""
        with torch.no_grad():
            found = self.detached()._bilinear_derivative(left, right)
        return [part for part in found if part is not None]


class LagCovariance(GridCovariance):
    """Toeplitz or block Toeplitz: products by FFT, O(m log m); any stationary kernel.

    Args:
        grid: equidistant.
        lags: the kernel at every lag of the grid, (m_1, ..., m_d).
    """

    def __init__(self, grid: InterpolationGrid, lags: Tensor) -> None:
        self.grid, self.tensors = grid, (lags,)
        self.operator = self._of(lags)
        self.variance = lags.detach().reshape(-1)[0]

    def low_rank(
        self, rank: int, tolerance: float, most_pivots: int, waves: int = 0
    ) -> LowRankPart:
        """As in ``GridCovariance``: pivots on one axis, products of its eigenvectors on several."""
        lags = self.tensors[0].detach()
        if lags.ndim == 1 and waves:
            found = WavePart.of(lags, waves, tolerance)
            if found is not None:
                return found
        if lags.ndim == 1 or max(lags.shape) > MOST_AXIS_POINTS:
            return PivotedPart.of(lags, self.grid, min(rank, most_pivots), tolerance)
        axes = []
        for i, m in enumerate(lags.shape):
            along = lags[(0,) * i + (slice(None),) + (0,) * (lags.ndim - 1 - i)]
            place = torch.arange(m, device=lags.device)
            axes.append(along[(place.unsqueeze(1) - place).abs()])
        return EigenPart.of(
            AxisSpectra.of(axes), self.grid, rank, tolerance, lags.flatten()[0], lags
        )

    def lags(self) -> Tensor:
        """As in ``GridCovariance``."""
        return self.tensors[0]

    def detached(self) -> LinearOperator:
        """As in ``GridCovariance``."""
        return self._of(self.tensors[0].detach().requires_grad_())

    @torch.no_grad()
    def embedded_draws(self, samples: int, generator: torch.Generator) -> Tensor:
        """Draws of N(0, K_UU) as columns (m, samples) by a circulant of twice the axes' lengths.

        Its negative eigenvalues, of kernels that have not decayed over the grid, are clipped.
        """
        column = reflected(self.tensors[0].detach())
        dims = tuple(range(column.ndim))
        roots = torch.fft.rfftn(column, dim=dims).real.clamp_min(0.0).sqrt()
        found = column.new_empty(self.grid.size, samples)
        for i in range(samples):
            normals = torch.randn(
                column.shape, generator=generator, dtype=column.dtype, device=column.device
            )
            drawn = torch.fft.irfftn(roots * torch.fft.rfftn(normals), s=column.shape)
            found[:, i] = drawn[tuple(slice(m) for m in self.grid.shape)].flatten()
        return found

    def _of(self, lags: Tensor) -> Toeplitz | BlockToeplitz:
        return Toeplitz(lags) if lags.ndim == 1 else BlockToeplitz(lags, grid=self.grid.shape)


class AxisCovariance(GridCovariance):
    """A Kronecker product of one dense matrix per axis: kernels that factor, any points.

    On axes of a few hundred points matrix products are several times faster than FFTs.
    """

    def __init__(self, grid: InterpolationGrid, axes: list[Tensor]) -> None:
        self.grid, self.tensors = grid, tuple(axes)
        self.operator = Kronecker(*axes)
        self.variance = reduce(torch.mul, [a.detach()[0, 0] for a in axes])

    def low_rank(self, rank: int, tolerance: float, most_pivots: int, waves: int = 0) -> EigenPart:
        """As in ``GridCovariance``."""
        prior = kronecker_vector([a.detach().diagonal() for a in self.tensors])
        return EigenPart.of(self.spectra, self.grid, rank, tolerance, prior)

    @cached_property
    def spectra(self) -> AxisSpectra:
        """Of the axes."""
        return AxisSpectra.of(self.tensors)

    def multiply(self, vectors: Tensor) -> Tensor:
        """As in ``GridCovariance``: through the axes' eigenvectors where these are few."""
        return self.spectra.matmul(vectors) if self.spectra.narrow else super().multiply(vectors)

    def gradient(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """As in ``GridCovariance``."""
        if self.spectra.narrow:
            return self.spectra.gradients(left, right)
        return super().gradient(left, right)

    def lags(self) -> Tensor | None:
        """As in ``GridCovariance``."""
        if not all(isinstance(axis, RegularAxis) for axis in self.grid.axes):
            return None
        return kronecker_vector([a[0] for a in self.tensors]).reshape(self.grid.shape)

    def detached(self) -> LinearOperator:
        """As in ``GridCovariance``."""
        return Kronecker(*[a.detach().requires_grad_() for a in self.tensors])


def grid_covariance(
    grid: InterpolationGrid, kernel: Kernel, device: torch.device
) -> GridCovariance:
    """K_UU in float64, in the form that is fastest for this kernel and grid.

    The parameters may be in float32: rounding of that size in a covariance would cost a small noise
    variance its meaning.

    Raises:
        ConfigError: points that are not equidistant and a kernel that does not factor over them.
    """
    at = kernel_at_lags(kernel)
    d = len(grid.axes)
    regular = all(isinstance(axis, RegularAxis) for axis in grid.axes)
    if regular and (d == 1 or max(grid.shape) > MOST_AXIS_POINTS or not factors(grid, at, device)):
        spacing = torch.tensor(grid.spacing, dtype=torch.float64, device=device)
        tau = grid_lags(spacing, grid.shape, even=True)
        return LagCovariance(grid, at(tau.reshape(grid.size, d)).reshape(grid.shape))
    if not regular and max(grid.shape) > MOST_AXIS_POINTS:
        raise ConfigError(
            f"an axis of {max(grid.shape):,} points that are not equidistant is a dense matrix of "
            f"{max(grid.shape) ** 2 * 8 / 2**20:,.0f} MiB; at most {MOST_AXIS_POINTS:,} are taken: "
            "use fewer points, or an equidistant grid"
        )
    if not regular and d > 1 and not factors(grid, at, device):
        raise ConfigError(
            f"kernel {kernel.name} is no product over the inputs, and on points that are not "
            "equidistant its matrix has no structure; use an equidistant grid, or a product of "
            "kernels of one input each"
        )
    axes: list[Tensor] = []
    for i, axis in enumerate(grid.axes):
        apart, place = _distances(axis, device)
        tau = apart.new_zeros(len(apart), d)
        tau[:, i] = apart
        column = at(tau)
        axes.append((column if not axes else column / at(tau.new_zeros(1, d)))[place])
    return AxisCovariance(grid, axes)


def kernel_at_lags(kernel: Kernel) -> Callable[[Tensor], Tensor]:
    """Lags (r, d) in float64 -> k (r,), differentiable in the parameters."""
    named = dict(kernel.named_parameters())
    values = tuple(p.double() for p in named.values())

    def at(tau: Tensor) -> Tensor:
        entries = Entries(kernel, tuple(named), values, tau, tau, False)
        return entries.call(lambda k: k.pairs(torch.zeros_like(tau), tau))

    return at


@torch.no_grad()
def factors(grid: InterpolationGrid, at: Callable[[Tensor], Tensor], device: torch.device) -> bool:
    """Whether k(tau) k(0)^(d - 1) = prod_l k(tau_l e_l), seen at some lags across the grid.

    Args:
        at: the kernel at lags (r, d), (r,).
    """
    d = len(grid.axes)
    if d == 1:
        return True
    spread = torch.linspace(0.0, 1.0, PROBED_LAGS, dtype=torch.float64, device=device).square()
    ends = [axis_points(axis, spread)[[0, -1]] for axis in grid.axes]
    tau = torch.cartesian_prod(*((last - first) * spread for first, last in ends))
    along = [at(torch.where(torch.arange(d, device=device) == i, tau, 0.0)) for i in range(d)]
    whole, zero = at(tau), at(tau.new_zeros(1, d))
    apart = whole * zero ** (d - 1) - reduce(torch.mul, along)
    return bool(apart.abs().max() <= FACTORS * zero.abs() ** d)


def _steps(axis: RegularAxis | Tensor, device: torch.device) -> Tensor:
    assert isinstance(axis, RegularAxis)
    return axis.spacing * torch.arange(axis.size, dtype=torch.float64, device=device)


def _distances(axis: RegularAxis | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Distances along an axis, and which of them lies between any two points (m_l, m_l)."""
    if isinstance(axis, RegularAxis):
        place = torch.arange(axis.size, device=device)
        return _steps(axis, device), (place.unsqueeze(1) - place).abs()
    points = axis.to(device)
    apart = (points.unsqueeze(1) - points).flatten()
    return apart, torch.arange(len(apart), device=device).reshape(len(points), len(points))
