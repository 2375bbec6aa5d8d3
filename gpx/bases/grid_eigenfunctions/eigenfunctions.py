"""Eigenfunctions of a kernel by the Nystrom method on a product grid that is never formed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.bases.base import Basis, check_inputs
from gpx.bases.closed_forms import AxisProducts
from gpx.bases.grid_eigenfunctions.factors import ProductFactors
from gpx.bases.grid_eigenfunctions.grid import GridOptions, grid_size, inducing_axes, pad_axes
from gpx.bases.grid_eigenfunctions.products import ProductPlan, tree_products
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg.kronecker_extremes import KroneckerExtremes, kronecker_extremes
from gpx.linalg.stable_eigh import stable_eigh
from gpx.tensor_checks import check_at_least, check_jitter

EIGENVALUE_FLOOR = 1e-12
"""Floor of each axis' eigenvalues, relative to the largest: rounding makes small ones negative."""

CLOSED_FORM_MARGIN = 0.25
"""The closed form is valid up to this share of the grid's width beyond it."""


class GridModes(NamedTuple):
    """The p leading eigenfunctions on a grid, ready to be evaluated.

    Attributes:
        transforms (d, m, c): Q_i Lambda_i^{-1/2} of the leading c eigenpairs of each axis; they
            carry the gradient.
        plan: the p multi-indices in the order of their products.
    """

    transforms: Tensor
    plan: ProductPlan


class PreparedColumns(NamedTuple):
    """Columns of the basis at the kernel's current parameters, for any inputs.

    Attributes:
        modes: with a plan of these columns.
        order (k,): places of the columns in the order of the plan.
        root (): square root of the outputscale.
    """

    modes: GridModes
    order: Tensor
    root: Tensor


class GridEigenfunctions(InDoublePrecision, Basis):
    """phi_j(x) = lambda_j^{-1/2} k(x, U) q_j for the p largest eigenvalues on a grid U, S = I.

    K_UU q_j = lambda_j q_j on the Cartesian product U of a few nodes along every input column, of
    any size (10^200 is fine): eigenvalues and eigenvectors are products of those of the d
    one-dimensional covariances, the p largest are found without listing them, and phi_j(x) is a
    product of d one-dimensional functions. The kernel that the basis stands for,
    k~(x, z) = phi(x)^T phi(z), is the Nystrom kernel of U cut to rank p; k - k~ is positive
    semi-definite.

    Features are differentiable in the kernel's parameters. The choice of the p largest products is
    piecewise constant in them, with jumps where it changes: ``select`` fixes the choice at the
    current parameters until it is called again. Without it every call chooses anew.

    Args:
        kernel: one that factors over the columns, see ``ProductFactors``.
        num_inputs: d.
        num_basis: largest p; at most the number of grid points.
        grid: how ``place`` builds the grid.
        factor_jitter: added to the diagonal of every one-dimensional covariance.

    Attributes:
        nodes (d, m): nodes along each column, the last one repeated; zero until ``place``.
        sizes (d,): number of nodes along each column, without the padding.
        index (p, d): the choice of ``select``, largest first; (0, d) before it.

    Cost: O(sum_i m_i^3) for the eigenpairs, O(d m p) for the selection, O(n (p + d m c)) for
    features at n points; nothing depends on the number of grid points prod_i m_i.
    Source: Evans thesis, sections 4.2 and 4.3 (Evans and Nair 2018).
    """

    data_sized = ("nodes", "index")
    derived = ("_plan",)
    kernel: Kernel
    nodes: Tensor
    sizes: Tensor
    index: Tensor

    def __init__(
        self,
        kernel: Kernel,
        num_inputs: int,
        num_basis: int = 1000,
        grid: GridOptions | None = None,
        factor_jitter: float = 1e-12,
    ) -> None:
        super().__init__()
        check_at_least(1, num_eigenfunctions=num_basis)
        check_jitter(factor_jitter=factor_jitter)
        self.kernel = kernel
        self.num_inputs = num_inputs
        self.factors = ProductFactors(kernel, num_inputs)
        self.most = num_basis
        self.num_basis = num_basis
        self.options = GridOptions() if grid is None else grid
        self.factor_jitter = factor_jitter
        # float64 whatever the features: the one-dimensional problems are small and ill-conditioned
        width = self.options.points_per_dim
        device = next((p.device for p in kernel.parameters()), None)
        nodes = torch.zeros(num_inputs, width, dtype=torch.float64, device=device)
        self.register_buffer("nodes", nodes)
        self.register_buffer("sizes", torch.ones(num_inputs, dtype=torch.int64, device=device))
        self.register_buffer("index", torch.zeros(0, num_inputs, dtype=torch.int64, device=device))
        self._plan: ProductPlan | None = None
        self._test_inputs: Tensor | None = None

    @property
    def asks_for_test_inputs(self) -> bool:
        """Whether ``place`` needs the inputs of the test set, see ``GridOptions.transductive``."""
        return self.options.transductive and self.options.axes is None

    def know_test_inputs(self, x: Tensor) -> None:
        """Inputs (t, d) of the test set, by which ``place`` then places the nodes as well."""
        self._test_inputs = x

    def forget_test_inputs(self) -> None:
        """Release those of ``know_test_inputs``; ``place`` would need them again."""
        self._test_inputs = None

    def place(self, x: Tensor) -> None:
        """Build the grid for inputs x (n, d), without a choice. Cost: O(n log n d).

        Raises:
            ConfigError: a transductive grid that was not given the test inputs.
        """
        check_inputs(x, "a grid of eigenfunctions")
        seen = x
        if self.asks_for_test_inputs:
            if self._test_inputs is None or not len(self._test_inputs):
                raise ConfigError(
                    "grid.transductive=true places the grid by the test inputs as well, and there "
                    "are none: give some, or leave it out"
                )
            check_inputs(self._test_inputs, "a grid of eigenfunctions")
            seen = torch.cat([x, self._test_inputs.to(x)])
        padded, sizes = pad_axes(inducing_axes(seen, self.options))
        self.nodes, self.sizes = padded.to(self.nodes.device), sizes.to(self.sizes.device)
        self.num_basis = min(self.most, self.grid_size)
        self.index, self._plan = self.index[:0], None

    def raise_lengthscales(self, x: Tensor) -> list[int]:
        """Raise lengthscales that the spacing of the nodes cannot resolve.

        Between nodes further apart than about a lengthscale the Nystrom eigenfunctions vanish, so
        that they cannot explain the data there.

        Args:
            x (n, d): training inputs. A column whose values are all nodes allows any lengthscale.

        Returns:
            the columns whose lengthscale was raised.

        Cost: O(n d log m).
        """
        return self.factors.raise_lengthscales(self.resolved_lengthscales(x))

    def resolved_lengthscales(self, x: Tensor) -> Tensor:
        """Twice the largest distance of the data x (n, d) to the nearest node: (d,), float64."""
        least = x.new_zeros(x.shape[1], dtype=torch.float64)
        for column, size in enumerate(self.sizes.tolist()):
            if size < 2:
                continue
            nodes, values = self.nodes[column, :size], x[:, column].double().contiguous()
            above = torch.searchsorted(nodes, values).clamp(1, size - 1)
            gap = torch.minimum((nodes[above] - values).abs(), (values - nodes[above - 1]).abs())
            least[column] = 2.0 * gap.max()
        return least

    @torch.no_grad()
    def select(self) -> int:
        """Choose the p largest products at the current parameters, and fix this choice.

        Returns:
            how many of them are new; p at the first call.

        Cost: O(sum_i m_i^3 + d m p).
        """
        found = self._largest(self.eigenpairs()[0])
        both = torch.cat([self.index, found.index])
        new = len(torch.unique(both, dim=0)) - len(self.index)
        self.choose(found.index)
        return new

    def choose(self, index: Tensor) -> None:
        """Fix the choice to the eigenfunctions with these multi-indices (p, d)."""
        self.index, self._plan = index, ProductPlan(index)

    def under(self, kernel: Kernel) -> GridEigenfunctions:
        """The same grid and choice for another kernel of as many inputs; buffers are shared."""
        other = GridEigenfunctions(
            kernel, self.factors.num_inputs, self.most, self.options, self.factor_jitter
        )
        other.nodes, other.sizes, other.index = self.nodes, self.sizes, self.index
        other.num_basis, other._plan = self.num_basis, self._plan
        return other

    @property
    def grid_size(self) -> int:
        """Number of grid points, prod_i m_i: a Python integer of any size."""
        return grid_size(self.sizes)

    @property
    def log10_grid_size(self) -> float:
        """Decimal logarithm of ``grid_size``."""
        return float(self.sizes.double().log().sum()) / math.log(10.0)

    def modes(self) -> GridModes:
        """Eigenpairs at the kernel's current parameters, and the plan of the p products.

        Cost: O(sum_i m_i^3 + d m p).
        """
        if len(self.index) == 0:
            return self.leading_modes()
        if self._plan is None:
            self._plan = ProductPlan(self.index)
        return self._modes(*self.eigenpairs(), self._plan)

    def leading_modes(self) -> GridModes:
        """As ``modes``, with a new choice, ignoring that of ``select``."""
        values, vectors = self.eigenpairs()
        return self._modes(values, vectors, ProductPlan(self._largest(values).index))

    def _modes(self, values: Tensor, vectors: Tensor, plan: ProductPlan) -> GridModes:
        c = plan.width
        return GridModes(vectors[:, :, :c] * self._floored(values)[:, None, :c].rsqrt(), plan)

    def _largest(self, values: Tensor) -> KroneckerExtremes:
        """The p largest products of eigenvalues (d, m)."""
        spectra = [v[:size] for v, size in zip(values.detach(), self.sizes.tolist(), strict=True)]
        return kronecker_extremes(spectra, self.num_basis, floor=EIGENVALUE_FLOOR)

    def eigenpairs(self) -> tuple[Tensor, Tensor]:
        """Values (d, m), descending, and vectors (d, m, m) of every axis, padded with zeros."""
        m = self.nodes.shape[1]
        inside = torch.arange(m, device=self.nodes.device) < self.sizes[:, None]
        square = inside[:, :, None] & inside[:, None, :]
        gram = self.factors.evaluate(self.nodes, self.nodes.mT).to(torch.float64)
        # -1 on the padded diagonal sorts the padding last and separates it from the rest
        rest = torch.diag_embed(torch.where(inside, self.factor_jitter, -1.0).to(gram.dtype))
        values, vectors = stable_eigh(torch.where(square, gram, 0.0) + rest)
        return torch.where(inside, values, 0.0), torch.where(square, vectors, 0.0)

    def _floored(self, values: Tensor) -> Tensor:
        """Eigenvalues raised to the floor; ones in the padding, where vectors are zero."""
        inside = torch.arange(values.shape[1], device=values.device) < self.sizes[:, None]
        raised = torch.maximum(values, EIGENVALUE_FLOOR * values[:, :1].detach())
        return torch.where(inside, raised, 1.0)

    def one_dimensional(self, x: Tensor, transforms: Tensor) -> Tensor:
        """Scaled eigenfunctions of every axis at x (n, d): (d, c, n). Cost: O(n d m c), in float64.

        Functions of small eigenvalues are differences of kernel entries that agree in most digits.
        """
        cross = self.factors.evaluate(self.nodes, x.to(self.nodes.dtype))
        single = (self.sizes == 1)[:, None, None]  # such an axis is ignored
        if torch.compiler.is_exporting() or bool(single.any()):
            cross = torch.where(single, 1.0, cross)
        return (transforms.mT.to(cross.dtype) @ cross).to(x.dtype)

    def features(self, x: Tensor, modes: GridModes) -> Tensor:
        """Eigenfunctions of the kernel with outputscale one at x (n, d): (p, n), in plan order.

        Differentiable in the transforms and in the kernel's parameters.
        """
        return tree_products(self.one_dimensional(x, modes.transforms), modes.plan)

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """phi(x), outputscale included: (n, p), or (n, len(columns)).

        Column j belongs to the j-th largest eigenvalue at the parameters at which ``select`` was
        called, or at the current ones. Computed in chunks of rows.

        Cost: O(n p) beside the eigenproblems; only the requested columns are formed.
        """
        check_inputs(x, "a grid of eigenfunctions")
        return self.evaluate(x, self.prepared(columns))

    def prepared(self, columns: Tensor | None = None) -> PreparedColumns:
        """What ``columns`` (all without) need at any inputs. Cost: that of ``modes``."""
        modes = self.modes()
        order = modes.plan.order if columns is None else modes.plan.order[columns]
        if columns is not None:
            chosen, order = torch.unique(order, return_inverse=True)
            plan = ProductPlan(modes.plan.index[chosen])
            modes = GridModes(modes.transforms, plan)
            order = plan.order[order]
        return PreparedColumns(modes, order, self.factors.outputscale.sqrt())

    def evaluate(self, x: Tensor, prepared: PreparedColumns) -> Tensor:
        """phi(x) at the columns of ``prepared``, outputscale included: (n, len(columns))."""
        modes, order, root = prepared
        d, m, c = modes.transforms.shape
        row = 3 * modes.plan.num_nodes * x.element_size() + 8 * d * (m + 2 * c)
        chunks = row_chunks(x.shape[0], row, DEFAULT_BUDGET)
        parts = [self.features(x[rows], modes).index_select(0, order) for rows in chunks]
        whole = torch.cat(parts, 1) if parts else x.new_empty(len(order), 0)
        return root.to(x.dtype) * whole.mT

    @torch.no_grad()
    def closed_form(self, num_inputs: int) -> AxisProducts:
        """As in ``Basis``, on the grid and a quarter of its width beyond (one, for one node)."""
        modes = self.modes()
        last = self.nodes.gather(1, (self.sizes - 1).unsqueeze(1)).squeeze(1)
        width = last - self.nodes[:, 0]
        beyond = torch.where(width > 0.0, CLOSED_FORM_MARGIN * width, 1.0)
        height = self.factors.outputscale.double().sqrt().expand(self.num_basis)
        return AxisProducts(
            lambda at: self.one_dimensional(at, modes.transforms),
            self.nodes[:, 0] - beyond,
            last + beyond,
            modes.plan.index[modes.plan.order],
            height,
        )

    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """Ones: the features carry the prior scale (S = I)."""
        count = self.num_basis if columns is None else columns.shape[0]
        return torch.ones(count, dtype=self.factors.outputscale.dtype, device=self.nodes.device)

    def mean_column_square(self) -> Tensor:
        """outputscale / m, 0-d: the mean over columns of phi_j(x)^2 where the basis is exact."""
        return self.factors.outputscale / self.num_basis

    def facts(self) -> dict[str, bool | int | float | str]:
        """Size of the grid."""
        return {"log10_inducing": self.log10_grid_size}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.num_basis = min(self.most, self.grid_size)
