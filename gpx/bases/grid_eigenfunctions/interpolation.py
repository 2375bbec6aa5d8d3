"""Structured kernel interpolation in many dimensions, through one-dimensional factors alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.eigenfunctions import EIGENVALUE_FLOOR
from gpx.bases.grid_eigenfunctions.factors import ProductFactors
from gpx.bases.grid_eigenfunctions.products import ProductPlan, tree_products
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.linalg import kronecker_extremes
from gpx.linalg.interpolation import RegularAxis, cubic_weights
from gpx.linalg.stable_eigh import stable_eigh
from gpx.operators.hadamard_interpolated import HadamardInterpolated

Interpolant = Literal["cubic", "kernel"]


class GridInterpolation:
    """A kernel on a product grid, interpolated to scattered inputs axis by axis.

    k~(x, z) = prod_l e_l(x)^T K_l e_l(z), with K_l the covariance of axis l and e_l(x) either the
    four cubic weights of x on the axis or the kernel's own interpolant K_l^{-1} k_l(axis, x) (which
    gives the subset of regressors on the whole grid). Nothing has the size of the grid. No model
    runs on it yet: it is the form of structured kernel interpolation for more than a few inputs.

    Args:
        kernel: one that factors over the columns, see ``ProductFactors``.
        axes: a regular axis per column.
        interpolant: "cubic" or "kernel".
        factor_jitter: on every K_l.

    Raises:
        ConfigError: a kernel that does not factor, no such interpolant.
    Source: Evans thesis, section 4.3.4.
    """

    def __init__(
        self,
        kernel: Kernel,
        axes: Sequence[RegularAxis],
        interpolant: Interpolant = "cubic",
        factor_jitter: float = 1e-12,
    ) -> None:
        if interpolant not in get_args(Interpolant):
            raise ConfigError(
                f"interpolant={interpolant}: choose one of {', '.join(get_args(Interpolant))}"
            )
        self.factors = ProductFactors(kernel, len(axes))
        self.axes = list(axes)
        self.interpolant = interpolant
        self.factor_jitter = factor_jitter

    def covariances(self, like: Tensor) -> list[Tensor]:
        """K_l (m_l, m_l) per axis, with jitter and outputscale one."""
        found = []
        for column, axis in enumerate(self.axes):
            points = axis.points(like)
            gram = self.factors.evaluate_column(column, points, points)
            jitter = self.factor_jitter * torch.eye(axis.size, dtype=gram.dtype, device=gram.device)
            found.append(gram + jitter)
        return found

    def rows(self, x: Tensor, covariances: Sequence[Tensor]) -> list[Tensor]:
        """E_l (n, m_l) per axis for inputs x (n, d). Cost: O(n sum_l m_l), kernel O(n m_l^2)."""
        found = []
        for column, (axis, gram) in enumerate(zip(self.axes, covariances, strict=True)):
            if self.interpolant == "kernel":
                cross = self.factors.evaluate_column(column, axis.points(x), x[:, column])
                found.append(torch.linalg.solve(gram, cross).mT)
            else:
                index, weight = cubic_weights(x[:, column], axis)
                zeros = x.new_zeros(x.shape[0], axis.size)
                found.append(zeros.scatter_add(1, index, weight))
        return found

    def operator(self, x: Tensor, z: Tensor | None = None) -> HadamardInterpolated:
        """k~(x, z) as a lazy operator, z = x by default; outputscale included.

        Cost: memory O((n + n') sum_l m_l); a product O(n n' sum_l m_l).
        """
        covariances = self.covariances(x)
        left = self.rows(x, covariances)
        right = left if z is None else self.rows(z, covariances)
        products = [e @ gram for e, gram in zip(left, covariances, strict=True)]
        products[0] = products[0] * self.factors.outputscale.to(x.dtype)
        return HadamardInterpolated(*products, *right)

    def low_rank(self, x: Tensor, rank: int) -> Tensor:
        """Phi (n, p) with Phi Phi^T the best rank-p cut of k~ on the grid; outputscale included.

        E Q S^T Lambda^{1/2} for the p largest eigenvalues of the grid's covariance: a low-rank
        kernel, and a factor for ``LowRankPlusNoise``.

        Cost: O(sum_l m_l^3 + n (p + sum_l m_l c)).
        """
        covariances = self.covariances(x)
        rows = self.rows(x, covariances)
        pairs = [stable_eigh(gram) for gram in covariances]
        found = kronecker_extremes([v.detach() for v, _ in pairs], rank, floor=EIGENVALUE_FLOOR)
        plan = ProductPlan(found.index)
        columns = []
        for e, (values, vectors) in zip(rows, pairs, strict=True):
            root = torch.maximum(values, EIGENVALUE_FLOOR * values[:1].detach()).sqrt()
            scaled = ((e @ vectors) * root).mT[: plan.width]
            short = plan.width - scaled.shape[0]
            columns.append(torch.nn.functional.pad(scaled, (0, 0, 0, short)))
        products = tree_products(torch.stack(columns), plan)
        scale = self.factors.outputscale.sqrt().to(x.dtype)
        return scale * products.index_select(0, plan.order).mT
