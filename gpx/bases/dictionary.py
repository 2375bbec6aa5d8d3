"""The relevance vector basis: kernel functions at given centres, each with its own precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gpx.bases.base import Basis, check_inputs, largest_divisor
from gpx.bases.closed_forms import Radial
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary

MAX_PRECISION = 1e8
"""Largest prior precision of a weight, at which it is practically zero."""


class KernelDictionary(Basis):
    """phi_i(x) = k(x, z_i), weight prior N(0, diag(s)^-1) with every s_i its own parameter.

    Empirical Bayes drives most s_i to infinity; the centres of the finite ones are the relevance
    vectors. Columns are evaluated on demand from the centres, nothing of size n x m is stored.

    Args:
        kernel: any covariance function.
        centres (m, d): z_i, copied; usually the training inputs. They do not move.
        block_size: upper limit of columns per block (the largest divisor of m below it is taken);
            only affects how columns are sampled, since every column costs the same.
        precision: initial value of every s_i, in inverse squared units of a weight.
        sparse: whether gradients of the precisions are sparse, for AdaGrad or SGD: for QSRVM. QSGP
            trains them with the kernel's parameters, by Adam, which needs dense ones.

    Attributes:
        log_precision (m, 1): parameter, log s; a table, so that its gradient can be sparse.

    Raises:
        ConfigError: no centres, or a precision outside (0, 1e8].

    Cost: O(n len(columns) d) time, O(n len(columns)) memory.
    Source: Tipping, "Sparse Bayesian learning and the relevance vector machine", 2001; QSGP paper,
    relevance vector machine experiment.
    """

    kernel: Kernel
    centres: Tensor

    def __init__(
        self,
        kernel: Kernel,
        centres: Tensor,
        block_size: int = 500,
        precision: float = 1.0,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        check_inputs(centres, "KernelDictionary")
        if centres.shape[0] < 1 or block_size < 1:
            raise ConfigError(
                f"a kernel dictionary needs at least one centre and block_size >= 1, got "
                f"{centres.shape[0]} centres and block_size={block_size}"
            )
        if not 0.0 < precision <= MAX_PRECISION:
            raise ConfigError(f"precision={precision} must be in (0, {MAX_PRECISION:g}]")
        self.kernel = kernel
        self.num_basis, self.num_inputs = centres.shape
        self.block_size = largest_divisor(self.num_basis, block_size)
        self.sparse = sparse
        self.register_buffer("centres", centres.detach().clone())
        start = torch.full((self.num_basis, 1), math.log(precision))
        self.log_precision = nn.Parameter(start.to(centres))

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """k(x, z) at any columns: (n, len(columns)) or (n, m); differentiable in the kernel."""
        check_inputs(x, "KernelDictionary")
        chosen = self.centres if columns is None else self.centres[columns]
        return self.kernel.evaluate(x, chosen.to(x.dtype))

    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """s at ``columns`` (all without), clamped at 1e8, differentiable: (len(columns),)."""
        table = self.log_precision
        rows = table if columns is None else embedding(columns, table, sparse=self.sparse)
        return rows[:, 0].clamp_max(math.log(MAX_PRECISION)).exp()

    def feature_parameters(self) -> list[nn.Parameter]:
        """Those of the kernel; precisions do not change the functions."""
        return list(self.kernel.parameters())

    @torch.no_grad()
    def closed_form(self, num_inputs: int) -> Radial | None:
        """As in ``Basis``, for stationary kernels of the distance of scaled inputs."""
        kernel = self.kernel
        if not isinstance(kernel, Stationary) or not kernel.is_radial:
            return None
        every = torch.arange(num_inputs, device=self.centres.device)
        columns = every if kernel.active_dims is None else kernel.active_dims
        each = kernel.lengthscale.double().reciprocal().square().expand(len(columns))
        rate = each.new_zeros(num_inputs).index_add(0, columns, each).sqrt()
        height = kernel.outputscale.double().expand(self.num_basis)
        return Radial(self.centres.double() * rate, rate, kernel.of_squared_distance, height)

    def mean_column_square(self) -> Tensor:
        """A reference for phi_r(x)^2: the squared prior variance at the first centre, 0-d."""
        return self.kernel.diagonal(self.centres[:1])[0].square()

    def relevant(self, threshold: float = 1e4) -> Tensor:
        """Columns whose precision is below ``threshold`` (the relevance vectors), int64 (k,)."""
        return torch.nonzero(self.log_precision.detach()[:, 0] < math.log(threshold))[:, 0]
