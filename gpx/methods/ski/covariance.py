"""The kernel matrix of a grid, as an operator with the structure that kernel and grid allow."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, reduce

import torch
from linear_operator import LinearOperator
from torch import Tensor, nn

from gpx.backends.entries import in_double
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.constant import Constant
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.periodic import Periodic
from gpx.kernels.stationary import Stationary
from gpx.kernels.structure import leaves
from gpx.kernels.warped import LinearWarp, Warped
from gpx.kernels.wendland import Wendland
from gpx.linalg import RegularAxis
from gpx.linalg.fft_products import convolve, correlate
from gpx.linalg.kronecker import kronecker_vector
from gpx.methods.ski.axis_spectra import AxisSpectra
from gpx.methods.ski.control_variate import reflect_lags
from gpx.methods.ski.grid import InterpolationGrid, axis_points
from gpx.methods.ski.low_rank import EigenPart, LowRankPart, PivotedPart
from gpx.methods.ski.waves import (
    WavePart,
    embedding_eigenvalues,
    embedding_period,
    fold_generator,
)
from gpx.operators import BlockToeplitz, Kronecker, Toeplitz, grid_lags
from gpx.operators.convolution import DENSE_ENTRIES
from gpx.warned_line import users_line

MAX_DENSE_AXIS = 1500
"""Most points of an axis whose matrix is dense; for longer ones FFTs are faster."""
NUM_TEST_LAGS = 9
"""Lags of each axis at which a kernel is tested for being even, and a product over the axes."""
FACTOR_TOLERANCE = 1e-10
"""Largest relative difference from a product over the axes that counts as rounding."""

DRAWN_ERROR = 1e-5
"""Largest share of the prior variance by which that of draws may differ."""
MAX_DRAWN_RANK = 1500
"""Most pivots of draws of a kernel that has not decayed over the grid."""
MAX_DRAWN_ENTRIES = 1 << 27
"""Most entries of their factor."""


class GridCovariance(ABC):
    """K_UU of a stationary kernel, differentiable in its parameters.

    Attributes:
        operator (m, m): K_UU.
        tensors: differentiable tensors that ``operator`` is made of.
        variance (): k(0).
    """

    operator: LinearOperator
    tensors: tuple[Tensor, ...]
    variance: Tensor

    @abstractmethod
    def low_rank(
        self, rank: int, tolerance: float, most_pivots: int, waves: int = 0
    ) -> LowRankPart:
        """C with C^T C near K_UU: at most ``rank`` rows, fewer if a trace error allows.

        Args:
            rank: largest rank.
            tolerance: trace error of K_UU - C^T C at which no more rows are added.
            most_pivots: largest rank if C is stored as an array (r, m).
            waves: most waves (``WavePart``) to use instead, if the grid has one axis and its
                circulant embedding is positive. Posteriors cannot store them.
        """

    def lags(self) -> Tensor | None:
        """K at every lag (m_1, ..., m_d), differentiable; None if the grid is not regular."""
        return None

    def multiply(self, vectors: Tensor) -> Tensor:
        """K_UU times vectors (m, c), without a graph."""
        with torch.no_grad():
            found: Tensor = self.operator.matmul(vectors)
        return found

    @abstractmethod
    def detached(self) -> LinearOperator:
        """The operator made of detached leaf tensors with gradients."""

    def gradient(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """Gradient of sum_c left_c^T K_UU right_c, for (m, c) each, by each of ``tensors``."""
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
        self.variance = lags.detach().reshape(-1)[0]

    @cached_property
    def operator(self) -> LinearOperator:
        """As in ``GridCovariance``."""
        return self._of(self.tensors[0])

    @cached_property
    def _embedding(self) -> Tensor | None:
        """``embedding_eigenvalues`` of one axis, without a graph; None: use ``operator``."""
        lags = self.tensors[0].detach()
        if lags.ndim > 1 or lags.numel() ** 2 <= DENSE_ENTRIES:
            return None
        return embedding_eigenvalues(lags)

    def multiply(self, vectors: Tensor) -> Tensor:
        """As in ``GridCovariance``."""
        if self._embedding is None:
            return super().multiply(vectors)
        m = len(vectors)
        return convolve(self._embedding, vectors, (embedding_period(m),), (m,), (m,))

    def gradient(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """As in ``GridCovariance``."""
        if self._embedding is None:
            return super().gradient(left, right)
        m = len(left)
        found = correlate(left, right, (embedding_period(m),), (m,), (m,))
        return [fold_generator(found, m)]

    def low_rank(
        self, rank: int, tolerance: float, most_pivots: int, waves: int = 0
    ) -> LowRankPart:
        """As in ``GridCovariance``: pivots on one axis, axis eigenvectors on several."""
        lags = self.tensors[0].detach()
        if lags.ndim == 1 and waves:
            found = WavePart.of(lags, waves, tolerance, self._embedding)
            if found is not None:
                return found
        if lags.ndim == 1 or max(lags.shape) > MAX_DENSE_AXIS:
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
        """Draws of N(0, K_UU) as columns (m, samples), by circulant embedding.

        If the kernel has not decayed over the grid, the embedding has negative eigenvalues. Then
        draws are those of greedy pivots, which carry all but ``DRAWN_ERROR`` of a smooth kernel;
        if they do not, the eigenvalues are clipped, with a warning.
        """
        lags = self.tensors[0].detach()
        column = reflect_lags(lags)
        dims = tuple(range(column.ndim))
        values = torch.fft.rfftn(column, dim=dims).real
        clipped = float(values.clamp(max=0.0).sum() / values.sum()) * -1.0
        if clipped > DRAWN_ERROR:
            size = self.grid.size
            rank = max(1, min(size, MAX_DRAWN_RANK, MAX_DRAWN_ENTRIES // size))
            left = DRAWN_ERROR * size * float(lags.flatten()[0])
            part = PivotedPart.of(lags, self.grid, rank, left)
            if part.complete:
                return part.expand(lags.new_empty(part.rank, samples).normal_(generator=generator))
            warnings.warn(
                f"draws on the grid have a prior variance that is too large by about "
                f"{clipped:.1%}, as the kernel has not decayed over the grid, and variances by "
                "variance=stochastic are too small; take variance=low_rank or quadratic_form",
                stacklevel=users_line(),
            )
        roots = values.clamp_min(0.0).sqrt()
        found = column.new_empty(self.grid.size, samples)
        for i in range(samples):
            normals = column.new_empty(column.shape).normal_(generator=generator)
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
        """Eigenvectors of the axes."""
        return AxisSpectra.of(self.tensors)

    def multiply(self, vectors: Tensor) -> Tensor:
        """As in ``GridCovariance``; through the axes' eigenvectors if these are few."""
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
    """K_UU in the form that is fastest for this kernel and grid.

    Always in float64, since float32 rounding of covariances would swamp a small noise variance.

    Raises:
        ConfigError: points that are not equidistant and a kernel that does not factor over inputs,
            or a kernel that is not even in every input.
    """
    at = kernel_at_lags(kernel)
    d = len(grid.axes)
    if d > 1 and not (_has_even_coordinates(kernel) or kernel_is_even(grid, at, device)):
        raise ConfigError(
            f"kernel {kernel.name} changes with the sign of a distance along one input, as if its "
            "coordinates mixed inputs, and a grid's matrix is made of a kernel that does not; use "
            "one with a lengthscale for every input, and a projection if inputs are to be mixed"
        )
    regular = all(isinstance(axis, RegularAxis) for axis in grid.axes)
    if regular and (
        d == 1 or max(grid.shape) > MAX_DENSE_AXIS or not kernel_factors(grid, at, device)
    ):
        spacing = torch.tensor(grid.spacing, dtype=torch.float64, device=device)
        tau = grid_lags(spacing, grid.shape, even=True)
        return LagCovariance(grid, at(tau.reshape(grid.size, d)).reshape(grid.shape))
    if not regular and max(grid.shape) > MAX_DENSE_AXIS:
        raise ConfigError(
            f"an axis of {max(grid.shape):,} points that are not equidistant is a dense matrix of "
            f"{max(grid.shape) ** 2 * 8 / 2**20:,.0f} MiB; at most {MAX_DENSE_AXIS:,} are taken: "
            "use fewer points, or an equidistant grid"
        )
    if not regular and d > 1 and not kernel_factors(grid, at, device):
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


def is_stationary(kernel: Kernel) -> bool:
    """Whether k(x, x') depends on x - x' only: stationary kernels, constants and combinations."""
    return all(map(_is_stationary_leaf, leaves(kernel)))


def _is_stationary_leaf(kernel: Kernel) -> bool:
    if isinstance(kernel, Warped) and computes_as(kernel, Warped):
        return isinstance(kernel.warp, (LinearWarp, nn.Linear)) and is_stationary(kernel.kernel)
    own_covariance = type(kernel).covariance is not Stationary.covariance
    return kernel.has_formula or (isinstance(kernel, Stationary) and not own_covariance)


def kernel_at_lags(kernel: Kernel) -> Callable[[Tensor], Tensor]:
    """A function from lags (r, d) in float64 to k (r,), differentiable in the parameters."""
    return lambda tau: in_double(kernel, lambda k: k.pairs(torch.zeros_like(tau), tau))


@torch.no_grad()
def kernel_factors(
    grid: InterpolationGrid, at: Callable[[Tensor], Tensor], device: torch.device
) -> bool:
    """Whether the kernel is a product over the axes, tested at some lags across the grid.

    The test is k(tau) k(0)^(d - 1) = prod_l k(tau_l e_l).

    Args:
        at: maps lags (r, d) to the kernel (r,).
    """
    d = len(grid.axes)
    if d == 1:
        return True
    tau = _test_lags(grid, device)
    along = [at(torch.where(torch.arange(d, device=device) == i, tau, 0.0)) for i in range(d)]
    whole, zero = at(tau), at(tau.new_zeros(1, d))
    apart = whole * zero ** (d - 1) - reduce(torch.mul, along)
    return bool(apart.abs().max() <= FACTOR_TOLERANCE * zero.abs() ** d)


def _has_even_coordinates(kernel: Kernel) -> bool:
    """Whether the classes of all parts say that they are functions of |tau_i|: no test needed."""
    known = (Stationary.coordinates, Periodic.coordinates, Wendland.coordinates)
    return all(
        computes_as(leaf, Constant)
        or (
            isinstance(leaf, Stationary)
            and type(leaf).covariance is Stationary.covariance
            and type(leaf).coordinates in known
        )
        for leaf in leaves(kernel)
    )


@torch.no_grad()
def kernel_is_even(
    grid: InterpolationGrid, at: Callable[[Tensor], Tensor], device: torch.device
) -> bool:
    """Whether k(tau) stays the same as any entry of tau changes its sign, tested at some lags.

    Args:
        at: maps lags (r, d) to the kernel (r,).
    """
    tau = _test_lags(grid, device)
    whole, allowed = at(tau), FACTOR_TOLERANCE * at(tau[:1]).abs()
    for i in range(1, tau.shape[1]):  # and thus for the first: k(-tau) = k(tau)
        flipped = tau.clone()
        flipped[:, i] *= -1.0
        if not bool((at(flipped) - whole).abs().max() <= allowed):
            return False
    return True


def _test_lags(grid: InterpolationGrid, device: torch.device) -> Tensor:
    """Lags (r, d) across the grid, of which the first is zero."""
    spread = torch.linspace(0.0, 1.0, NUM_TEST_LAGS, dtype=torch.float64, device=device).square()
    ends = [axis_points(axis, spread)[[0, -1]] for axis in grid.axes]
    return torch.cartesian_prod(*((last - first) * spread for first, last in ends))


def _distances(axis: RegularAxis | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Distances along an axis, and the index (m_l, m_l) of the distance between any two points."""
    if isinstance(axis, RegularAxis):
        place = torch.arange(axis.size, device=device)
        return axis.steps(place.double()), (place.unsqueeze(1) - place).abs()
    points = axis.to(device)
    apart = (points.unsqueeze(1) - points).flatten()
    return apart, torch.arange(len(apart), device=device).reshape(len(points), len(points))
