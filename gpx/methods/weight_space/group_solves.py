"""Exact solves for a group of weights given all others: normal equations and their factor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.errors import NotPositiveDefinite
from gpx.linalg.cholesky import cholesky
from gpx.linalg.memory import float64_is_free, working_memory

ROW_CHUNK = 4096
"""Data rows whose features are computed at a time; on a GPU the minimum."""

COLUMN_PANEL = 256
"""Columns of the Gram matrix computed at a time; an eighth of the group if that is more."""

PROBE_ROWS = 256
"""Data rows from which the magnitude of the features is estimated."""

FLOAT32_SAFETY = 32.0
"""The ridge must exceed the float32 error of the normal matrix by this factor."""


def needs_float64(column_square: float, ridge: float, size: int) -> bool:
    """Whether float32 products are too inaccurate for A + ridge I with b = ``size`` columns.

    Rounding gives A an error matrix of norm about eps32 * a_rr * sqrt(b) (independent entries). If
    that is near the ridge, small eigenvalues of the system are noise and Cholesky may fail.
    """
    error = torch.finfo(torch.float32).eps * column_square * size**0.5
    return FLOAT32_SAFETY * error > ridge


class WeightGroup:
    """b columns of a basis whose weights are solved for together; Phi_g (n, b) are their features.

    Args:
        basis: phi with S diagonal.
        columns (b,): column numbers.
        evaluate: inputs (n, d) -> Phi_g^T (b, n), rows in the order of ``columns``.
    """

    def __init__(self, basis: Basis, columns: Tensor, evaluate: Callable[[Tensor], Tensor]) -> None:
        self.basis = basis
        self.columns = columns
        self.evaluate = evaluate

    @classmethod
    def of_blocks(cls, basis: Basis, blocks: Tensor) -> WeightGroup:
        """The group of all columns of ``blocks`` (L,), in order."""
        columns = basis.columns_of(blocks)
        features = basis.features_of(blocks)
        return cls(basis, columns, lambda x: features(x).T)

    @classmethod
    def of_columns(cls, basis: Basis, columns: Tensor) -> WeightGroup:
        """The group of any ``columns`` (b,)."""
        return cls(basis, columns, lambda x: basis(x, columns).T)

    @property
    def size(self) -> int:
        """b."""
        return self.columns.shape[0]

    @torch.no_grad()
    def prior_precision(self) -> Tensor:
        """Diagonal of S at the columns: (b,), float64."""
        return self.basis.precision_diagonal(self.columns).double()

    @torch.no_grad()
    def normal_equations(
        self, x: Tensor, y: Tensor, *, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Lower triangle of Phi_g^T Phi_g (b, b) and Phi_g^T y (b,) in float64.

        Features and their products are computed in ``dtype`` by chunks of rows and summed in
        float64; on devices with fast float64, products are float64, too. The upper triangle is 0.

        Cost: about 1.2 n b^2 operations, O(b^2 + chunk b) memory.
        """
        gram = torch.zeros(self.size, self.size, dtype=torch.float64, device=x.device)
        moment = torch.zeros(self.size, dtype=torch.float64, device=x.device)
        panel = max(COLUMN_PANEL, self.size // 8)
        step = self.rows_at_once(x)
        accumulate = torch.float64 if float64_is_free(x.device) else dtype
        for rows, targets in zip(x.split(step), y.split(step), strict=True):
            features = self.evaluate(rows.to(dtype)).to(accumulate)
            moment += features @ targets.to(accumulate)
            for start in range(0, self.size, panel):
                stop = min(start + panel, self.size)
                part = gram[start:stop, :stop]
                if accumulate == gram.dtype and not x.is_cpu:
                    part.addmm_(features[start:stop], features[:stop].T)
                else:
                    part += features[start:stop] @ features[:stop].T
        return gram.tril_(), moment

    def rows_at_once(self, x: Tensor) -> int:
        """Rows of x whose features are computed at a time, by the working memory of the device."""
        if x.is_cpu:
            return ROW_CHUNK
        per_row = self.size * (2 * x.element_size() + 8)  # the features twice, and once in float64
        return max(ROW_CHUNK, working_memory(x.device) // max(1, per_row))

    @torch.no_grad()
    def values(self, weights: Tensor, x: Tensor) -> Tensor:
        """Phi_g w in float64, (n,), with features in x's dtype; weights (b,). Cost O(n b)."""
        pieces = x.split(self.rows_at_once(x))
        chunks = [(weights.to(x.dtype) @ self.evaluate(rows)).double() for rows in pieces]
        return torch.cat(chunks)

    @torch.no_grad()
    def root_of_precision(self, x: Tensor, weight: float, prior: Tensor) -> Tensor:
        """Lower Cholesky root (b, b) of weight Phi_g^T Phi_g + diag(prior), by QR in float64.

        The matrix itself is not computed. Of columns that are nearly the same and large, such as
        those of a kernel with long lengthscales under little noise, rounding would lose ``prior``.

        Cost: about 2 n b^2 + 4 n b^3 / chunk operations, several times slower than Cholesky.
        """
        root = prior.double().sqrt().diag()
        for rows in x.split(self.rows_at_once(x)):
            features = self.evaluate(rows.double()).double().T
            root = torch.linalg.qr(torch.cat([root, weight**0.5 * features]), mode="r").R
        return (root * root.diagonal().sign()[:, None]).T.contiguous()

    @torch.no_grad()
    def column_squares(self, x: Tensor) -> Tensor:
        """Diagonal of Phi_g^T Phi_g at x (n, d): (b,), float64. Cost O(n b), memory of a chunk."""
        total = torch.zeros(self.size, dtype=torch.float64, device=x.device)
        for rows in x.split(self.rows_at_once(x)):
            total += self.evaluate(rows).square().sum(1, dtype=torch.float64)
        return total

    def product_dtype(self, x: Tensor, ridge: Tensor) -> torch.dtype:
        """Dtype of products for Phi_g^T Phi_g + diag(ridge): float64 if x's is too inaccurate.

        Args:
            x (n, d): inputs.
            ridge (b,): noise variance times prior precision.
        """
        if x.dtype == torch.float64:
            return x.dtype
        # rows from all over the data: sorted inputs and local functions may miss each other
        rows = x[:: max(1, x.shape[0] // PROBE_ROWS)][:PROBE_ROWS]
        probe = self.evaluate(rows).double().square().mean()
        if needs_float64(float(probe) * x.shape[0], float(ridge.min()), self.size):
            return torch.float64
        return x.dtype


@dataclass(frozen=True)
class GroupSystem:
    """The factorised matrix P = weight Phi_g^T Phi_g + earlier + diag(prior).

    Attributes:
        precision (b, b): lower triangle of P, float64.
        factor (b, b): its lower Cholesky root.
        moment (b,): weight Phi_g^T residual.
        dtype: of the feature products.
    """

    precision: Tensor
    factor: Tensor
    moment: Tensor
    dtype: torch.dtype

    def solve(self, right: Tensor) -> Tensor:
        """P^-1 right, for right (b,)."""
        return torch.cholesky_solve(right[:, None], self.factor)[:, 0]


@torch.no_grad()
def group_system(
    group: WeightGroup,
    x: Tensor,
    residual: Tensor,
    *,
    weight: float,
    prior: Tensor,
    earlier: Tensor | None = None,
) -> GroupSystem:
    """Normal equations of a group from all rows of x, factorised.

    Given all other weights, noise of variance 1 / ``weight`` and the prior precision
    diag(``prior``), the posterior of the group's weights w has precision P. If ``residual`` is
    taken at the current w, the posterior mean is w + P^-1 (moment - prior w).

    Products of features run in x's dtype if that is accurate enough, and are repeated in float64 if
    the factorisation fails; if it fails in float64, too, the root is that of ``root_of_precision``.
    No jitter is added.

    Args:
        group: the columns.
        x (n, d): inputs.
        residual (n,): targets minus fitted values.
        weight: factor of the data term, such as 1 / noise variance.
        prior (b,): prior precisions, float64.
        earlier (b, b): lower triangle of a matrix to add to P; None: nothing.

    Raises:
        NotPositiveDefinite: P is not finite or, with ``earlier``, singular even in float64.

    Cost: O(n b^2 + b^3) time, O(b^2) memory.
    """

    def attempt(dtype: torch.dtype) -> GroupSystem:
        system, moment = group.normal_equations(x, residual, dtype=dtype)
        system.mul_(weight)
        if earlier is not None:
            system.add_(earlier)
        system.diagonal().add_(prior)
        name = f"precision of {group.size} basis functions"
        try:
            factor, _ = cholesky(system, name=name, ladder=(0.0,))
        except NotPositiveDefinite:
            if dtype != torch.float64 or earlier is not None:
                raise
            factor = group.root_of_precision(x, weight, prior)
            if not bool(factor.isfinite().all()):
                raise
        return GroupSystem(system, factor, weight * moment, dtype)

    dtype = group.product_dtype(x, prior / weight)
    try:
        return attempt(dtype)
    except NotPositiveDefinite:
        if dtype == torch.float64:
            raise
        return attempt(torch.float64)


@torch.no_grad()
def fitted_values(parts: Iterable[tuple[WeightGroup, Tensor]], x: Tensor) -> Tensor:
    """Sum of Phi_g w (n,), float64, over pairs of a group and its weights (b,).

    Cost: O(n b) per group; groups with zero weights are skipped.
    """
    total = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    for group, weights in parts:
        if bool((weights != 0).any()):
            total += group.values(weights, x)
    return total
