"""Linear mixtures of Gaussian processes of one feature each, on grids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, class_name
from gpx.inference.variational import FullCholesky
from gpx.kernels.base import Kernel
from gpx.kernels.for_inputs import for_inputs
from gpx.kernels.stationary import Stationary
from gpx.linalg import CholeskyReport, cholesky
from gpx.linalg.interpolation import RegularAxis, cubic_weights
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.output_layer import OutputLayer, check_columns
from gpx.tensor_checks import check_at_least, check_jitter

MARGIN_CELLS = 2
"""Grid cells outside the range of features, for the stencil of cubic interpolation."""


class AdditiveGridLayer(OutputLayer):
    """F = g A with g_j(x) = w(x_j) . u_j: J functions of one feature each, with u_j on a grid.

    Features are squashed to (-1, 1) by tanh(x / 2) and interpolated from a grid of G points by four
    cubic weights w(x_j). u_j = L_j v_j with q(v_j) Gaussian, and L_j L_j^T the covariance with the
    j-th lengthscale at the grid. The conditional variance between grid points is neglected, which
    is small for a fine grid.

    Args:
        kernel: stationary; resized to J features with one lengthscale each.
        num_inputs: J.
        num_outputs: p, columns of the mixing matrix A.
        grid_size: G.
        jitter: added to the covariances, relative to their mean diagonal; more is tried on failure
            and reported.

    Raises:
        ConfigError: another kernel, sizes below one, or too small a grid.

    Attributes:
        report: of the factorisation in the last pass; None before the first.

    Cost per pass: O(J G^3 + n J G^2). Source: Wilson, Hu, Salakhutdinov and Xing, "Stochastic
    variational deep kernel learning", NeurIPS 2016.
    """

    repeats = False  # places of the grid are checked by the host
    report: CholeskyReport | None = None
    _roots: Tensor | None = None

    def __init__(
        self,
        kernel: Kernel,
        num_inputs: int,
        num_outputs: int = 1,
        grid_size: int = 64,
        *,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        check_at_least(1, num_inputs=num_inputs, num_outputs=num_outputs)
        check_jitter(jitter=jitter)
        if not isinstance(kernel, Stationary):
            raise ConfigError(
                f"functions on a grid take a stationary kernel, got {class_name(kernel)}; use "
                "kernel=RBF() or Matern32()"
            )
        made = for_inputs(kernel, num_inputs)
        assert isinstance(made, Stationary)
        self.kernel = made
        self.num_inputs, self.num_outputs, self.jitter = num_inputs, num_outputs, jitter
        self.axis = RegularAxis.covering(-1.0, 1.0, grid_size, margin=MARGIN_CELLS)
        self.q = FullCholesky().start(grid_size, num_inputs)
        self.mixing = nn.Parameter(torch.zeros(num_inputs, num_outputs))

    @property
    def analytic(self) -> bool:
        """As in ``OutputLayer``: several outputs are dependent, as they mix the same functions."""
        return self.num_outputs == 1

    def draw_start(self, generator: torch.Generator) -> None:
        """Draw the mixing weights from N(0, 1 / J)."""
        noise = torch.randn(self.mixing.shape, generator=generator, device=generator.device)
        with torch.no_grad():
            self.mixing.copy_(noise / self.num_inputs**0.5)

    def grid_covariance(self) -> Tensor:
        """Covariance of u_j for every feature (J, G, G) in float64, differentiable."""
        points = self.axis.points(self.mixing.double())
        repeated = points.unsqueeze(1).expand(-1, self.num_inputs)
        # the first coordinate of all J features, then for periodic kernels the second of all
        at = self.kernel.coordinates(repeated).unflatten(1, (-1, self.num_inputs))
        r2 = (at.unsqueeze(1) - at).square().sum(2).movedim(2, 0)
        same = torch.eye(len(points), dtype=torch.bool, device=points.device)
        # the diagonal is masked, as a square root has an infinite derivative at zero
        profile = self.kernel.of_squared_distance(r2.masked_fill(same, 1.0)).masked_fill(same, 1.0)
        return self.kernel.outputscale.double() * profile

    def _factor(self) -> Tensor:
        """L_j of all features (J, G, G) in float64."""
        covariance = self.grid_covariance()
        factor, self.report = cholesky(
            covariance,
            name=f"the covariance at {self.axis.size} grid points of each feature",
            ladder=(self.jitter, *(j for j in (1e-5, 1e-4) if j > self.jitter)),
            hint="fewer grid points or shorter lengthscales",
        )
        return factor

    def projections(self, x: Tensor) -> Tensor:
        """A_j (n, J, G) with g_j(x) = A_j . v_j, for features x (n, J)."""
        check_columns(self, x, self.num_inputs)
        roots = self._factor().to(x.dtype) if self._roots is None else self._roots
        squashed = torch.tanh(0.5 * x)
        index, weights = cubic_weights(squashed.flatten(), self.axis, outside="clamp")
        feature = torch.arange(self.num_inputs, device=x.device).repeat(len(x))
        rows = roots[feature.unsqueeze(1), index]  # (n J, 4, G)
        return (weights.unsqueeze(1) @ rows).view(len(x), self.num_inputs, -1)

    def functions(self, x: Tensor) -> Marginals:
        """Mean and variance (n, J) of every g_j under q."""
        projections = self.projections(x).transpose(0, 1)  # (J, n, G)
        mean = (projections @ self.q.mean.unsqueeze(2)).squeeze(2)
        return Marginals(mean.mT, (projections @ self.q.root()).square().sum(2).mT)

    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (n, p) of each output; outputs are dependent."""
        mean, variance = self.functions(x)
        return Marginals(mean @ self.mixing, variance @ self.mixing.square())

    def forward(self, x: Tensor) -> Tensor:
        """A draw of F(x) under q: (n, J) -> (n, p)."""
        if not self.draws.shared:
            return self.sample(x, 1)[0]
        noise = self.draws.normals((*self.q.mean.shape, 1), self.q.mean)
        v = self.q.mean + (self.q.root() @ noise).squeeze(2)
        g = torch.einsum("njg,jg->nj", self.projections(x), v)
        return g @ self.mixing

    def sample(self, x: Tensor, num: int) -> Tensor:
        """As in ``OutputLayer``, at the cost of one pass."""
        return self.draw_from(self.functions(x), num) @ self.mixing

    def kl(self) -> Tensor:
        """KL(q(u) || p(u)), exact."""
        return self.q.kl(self.q.root())

    @torch.no_grad()
    def hold(self) -> None:
        """As in ``RandomLayer``: factorise once for many passes."""
        self._roots = self._factor().to(self.mixing.dtype)

    def release(self) -> None:
        """As in ``RandomLayer``."""
        self._roots = None
