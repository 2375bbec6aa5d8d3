"""Eigenfunctions of the Laplacian on a box, which do not depend on hyperparameters."""

from __future__ import annotations

import copy
import math
import warnings

import torch
from torch import Tensor

from gpx.bases.base import LEAST_LOG_VARIANCE, Basis, check_inputs, largest_divisor
from gpx.bases.closed_forms import AxisProducts
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError, ShapeError, class_name
from gpx.kernels import RBF, Kernel, Matern
from gpx.tensor_checks import check_at_least
from gpx.warned_line import users_line

MIN_CAPTURED_SHARE = 0.9
"""A warning is given when the functions have less than this share of the prior variance at the
middle of the box."""

WIDER_BOX = 1.25
"""To find the cause, the share is also computed for a box wider by this factor: if it is larger
there, the box is too narrow."""


class LaplacianEigenfunctions(InDoublePrecision, Basis):
    """phi_j(x) = prod_k sin(pi j_k (x_k - c_k + L_k) / (2 L_k)) / sqrt(L_k), weights N(0, s(w_j)).

    With w_j = pi j / (2 L) and s the spectral density of the kernel, phi^T diag(s) phi tends to the
    kernel inside the box |x - c| < L as m grows. Hyperparameters enter through s alone, so that
    ``Reweighted`` learns the kernel from sums over the data. The functions vanish on the boundary
    and outside, so the box is larger than the range of the data.

    Args:
        kernel: RBF or Matern of all columns, whose spectral densities fall with the frequency.
        num_basis: m; the lowest frequencies are taken, in units of the initial lengthscales.
        num_inputs: d.
        boundary: half-width of the box over that of the data, more than 1; the kernel is accurate
            where the boundary is a few lengthscales away.
        block_columns: upper limit of columns per block (the largest divisor of m below it).

    Attributes:
        centre (d,), half_width (d,): of the box.
        orders (m, d): j, from 1.

    Raises:
        ConfigError: another kernel, or options out of range.

    Cost: O(n m d) a product of sines; choosing the functions O(d m log^2 m).
    Source: Solin and Sarkka, "Hilbert space methods for reduced-rank Gaussian process regression",
    2020.
    """

    follows_kernel = True
    in_double = ("centre", "half_width")
    kernel: RBF | Matern
    num_inputs: int
    centre: Tensor
    half_width: Tensor
    orders: Tensor

    def __init__(
        self,
        kernel: Kernel,
        num_basis: int,
        num_inputs: int,
        boundary: float = 1.5,
        block_columns: int = 500,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, RBF | Matern) or kernel.active_dims is not None:
            raise ConfigError(
                "eigenfunctions of the Laplacian need an RBF or Matern kernel of all inputs, got "
                f"{class_name(kernel)}; give one of these, with active_dims=None"
            )
        check_at_least(1, num_basis=num_basis, block_columns=block_columns)
        if not 1.0 < boundary < math.inf:
            raise ConfigError(f"boundary={boundary} must be above 1 and finite")
        kernel.num_spectral_normals(num_inputs)  # raises for a subclass without a spectrum
        self.kernel = kernel
        self.num_basis, self.num_inputs = num_basis, num_inputs
        self.boundary = boundary
        self.block_size = largest_divisor(num_basis, block_columns)
        double = torch.float64
        self.register_buffer("centre", torch.zeros(num_inputs, dtype=double))
        self.register_buffer("half_width", torch.ones(num_inputs, dtype=double))
        self.register_buffer("orders", torch.ones(num_basis, num_inputs, dtype=torch.int64))
        self._choose()

    @torch.no_grad()
    def place(self, x: Tensor) -> None:
        """Place the box around x (n, d) and choose the functions for the current kernel."""
        low, high = x.double().amin(0), x.double().amax(0)
        width = 0.5 * (high - low)
        self.centre = 0.5 * (low + high)
        self.half_width = self.boundary * torch.where(width > 0.0, width, torch.ones_like(width))
        self._choose()

    @torch.no_grad()
    def _choose(self) -> None:
        """The m multi-indices of least sum of (lengthscale w)^2, input by input."""
        steps = self.kernel.lengthscale.detach().double().to(self.half_width) / self.half_width
        device, m = self.half_width.device, self.num_basis
        cost, orders = self.half_width.new_zeros(1), torch.zeros(1, 0, dtype=torch.int64)
        orders = orders.to(device)
        for step in steps.expand(self.num_inputs):
            # prefix i can be among the m best with its first m / (i + 1) orders only: the i cheaper
            # prefixes come first with each of them
            counts = m // torch.arange(1, len(cost) + 1, device=device)
            before = torch.arange(len(cost), device=device).repeat_interleave(counts)
            first = counts.cumsum(0) - counts
            own = torch.arange(len(before), device=device) - first[before] + 1
            more = cost[before] + (step * own).square()
            # stable: ties must be broken in the same way on every machine
            best = more.sort(stable=True).indices[:m]
            cost = more[best]
            orders = torch.cat([orders[before[best]], own[best].unsqueeze(1)], 1)
        self.orders = orders

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """As in ``Basis``, independent of the kernel. Warns of inputs outside the box."""
        check_inputs(x, "LaplacianEigenfunctions")
        if x.shape[1] != self.num_inputs:
            raise ShapeError(
                f"LaplacianEigenfunctions is made for {self.num_inputs} inputs, got {x.shape[1]} "
                "columns"
            )
        orders = self.orders if columns is None else self.orders[columns]
        angle = (x - self.centre.to(x.dtype)) / self.half_width.to(x.dtype)
        beyond = (angle.abs() > 1.0).any(1)
        if bool(beyond.any()):
            warnings.warn(
                f"{int(beyond.sum())} of {len(x)} inputs lie beyond the box of the Laplacian's "
                "eigenfunctions, where these are zero and so is the variance; use a larger "
                "boundary",
                stacklevel=users_line(),
            )
        angle = (0.5 * math.pi) * (angle.clamp(-1.0, 1.0) + 1.0)
        product = x.new_ones(len(x), len(orders))
        for column in range(self.num_inputs):
            wave = angle[:, column, None] * orders[:, column].to(x.dtype)
            product = product * wave.sin_()
        return product / self.half_width.prod().sqrt().to(x.dtype)

    @torch.no_grad()
    def closed_form(self, num_inputs: int) -> AxisProducts:
        """As in ``Basis``, on the box."""
        counts = torch.arange(1, int(self.orders.max()) + 1, device=self.orders.device).double()

        def sines(at: Tensor) -> Tensor:
            place = ((at - self.centre) / self.half_width).clamp(-1.0, 1.0).mT.unsqueeze(1)
            return ((0.5 * math.pi) * (place + 1.0) * counts[:, None]).sin()

        height = self.half_width.prod().rsqrt().expand(self.num_basis)
        low, high = self.centre - self.half_width, self.centre + self.half_width
        return AxisProducts(sines, low, high, self.orders - 1, height)

    def log_variances(self, columns: Tensor | None = None) -> Tensor:
        """log s(w) (m,), or of some ``columns``; float64, differentiable in the kernel."""
        orders = self.orders if columns is None else self.orders[columns]
        cycles = 0.25 * orders.double() / self.half_width  # w / (2 pi)
        return self.kernel.log_spectral_density(cycles).double()

    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """1 / s(w), in the kernel's dtype; at most e^80, which float32 holds."""
        logs = self.log_variances(columns).clamp_min(LEAST_LOG_VARIANCE)
        return (-logs).exp().to(self.kernel.lengthscale.dtype)

    def mean_column_square(self) -> Tensor:
        """Mean over a uniform input in the box, equal for all columns: prod_k 1 / (2 L_k), 0-d."""
        return (0.5 / self.half_width).prod().to(self.kernel.lengthscale.dtype)

    @torch.no_grad()
    def captured(self) -> float:
        """Share of the prior variance at the middle of the box that the functions have.

        Below one if there are too few functions for the lengthscales, or if the box is too narrow:
        near the boundary the functions have less variance than the kernel.
        """
        squares = (self.orders % 2).double().prod(1)  # sines of odd order are +-1 there
        total = (self.log_variances().exp() * squares).sum() / self.half_width.prod()
        return float(total / self.kernel.outputscale.double())

    def facts(self) -> dict[str, bool | int | float | str]:
        """``captured``."""
        return {"captured_variance": self.captured()}

    def warn_of_few(self) -> bool:
        """As in ``Basis``, judged by ``captured``."""
        share = self.captured()
        few = share < MIN_CAPTURED_SHARE
        if few:
            wider = copy.deepcopy(self)
            wider.half_width = WIDER_BOX * self.half_width
            wider._choose()
            cause = (
                "its lengthscales are too long for so narrow a box; take a larger boundary"
                if wider.captured() > share
                else "its lengthscales are too short for so few; take more (num_basis), or a "
                "smaller boundary"
            )
            warnings.warn(
                f"the {self.num_basis} eigenfunctions of the Laplacian have {100 * share:.0f} % of "
                f"the kernel's variance: {cause}",
                stacklevel=users_line(),
            )
        return few
