"""The auxiliary vector v near K^{-1} y of the conjugate gradient bound, and how it is found."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpx.backends import BackendName, Chunked
from gpx.errors import ConfigError, DataError
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.inference.stationary_gradient import has_slope_products, stationary_gradient
from gpx.kernels.base import Kernel
from gpx.linalg import EvidenceBound, SolveReport, UnconvergedWarning, conjugate_gradients
from gpx.operators import KernelMatrix

REDUCED = {"float32": torch.float32, "float64": None}
"""Names of the dtypes that products with the kernel matrix may run in."""


class NoisyKernelMatrix:
    """v -> K v with K = k(x, x) + noise I, in the dtype of v; nothing of size n x n is kept.

    Args:
        kernel, x (n, d), noise (): covariance function, inputs, noise variance.
        reduced: lower dtype in which products may be asked for as well; None for none.
        memory_budget: bytes of a product, half of which may hold the matrix itself if it fits.
        backend: "dense", "chunked" or "keops"; None chooses.

    Cost: a product n^2 (d + 1) multiply-adds and n^2 / 2 kernel evaluations (none where the matrix
    is kept).
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        noise: Tensor,
        *,
        reduced: torch.dtype | None = None,
        memory_budget: int = 2**30,
        backend: BackendName | None = None,
    ) -> None:
        self.noise, self._memory_budget = noise.detach(), memory_budget
        self._full: KernelMatrix = kernel(x, memory_budget=memory_budget, backend=backend)
        self._reduced: KernelMatrix | None = None
        if reduced is not None and reduced != x.dtype:
            narrow = self._full.to(reduced)
            assert isinstance(narrow, KernelMatrix)
            self._reduced = narrow

    def __call__(self, vectors: Tensor) -> Tensor:
        """K times vectors (n,) or (n, c)."""
        with torch.no_grad():
            return self._matrix(vectors.dtype) @ vectors + self.noise.to(vectors.dtype) * vectors

    def derivative(
        self, left: Tensor, right: Tensor, product: Tensor | None = None
    ) -> dict[Tensor, Tensor]:
        """Gradient of sum_c left_c^T k(x, x) right_c for the kernel's parameters and x.

        Args:
            left, right: (n,) or (n, c).
            product: k(x, x) right, where it is known.

        Always in the data's dtype: with v near K^{-1} y the sum cancels to a small part of its
        terms, and float32 would leave no digit of it. Cost: about four products, fewer for
        stationary kernels with ``product`` known (``stationary_gradient``); memory of tiles.
        """
        entries = self._full.entries
        if product is not None and has_slope_products(entries.kernel, entries):
            engine = Chunked(self._memory_budget)
            grads = stationary_gradient(engine, entries, left, right, product)
            return dict(zip((p for p in entries.parameters if p.requires_grad), grads, strict=True))
        sides = (v.unsqueeze(1) if v.ndim == 1 else v for v in (left, right))
        found = self._full.engine.derivative(self._full.entries, *sides)
        sums: dict[Tensor, Tensor] = {}
        for tensor, gradient in zip(self._full.entries.tensors, found, strict=True):
            if gradient is not None:  # the inputs stand for rows and for columns
                sums[tensor] = sums[tensor] + gradient if tensor in sums else gradient
        return sums

    def _matrix(self, dtype: torch.dtype) -> KernelMatrix:
        if self._reduced is not None and dtype == self._reduced.entries.x1.dtype:
            return self._reduced
        return self._full


@dataclass(frozen=True)
class Auxiliary:
    """A vector v, whatever its quality, with what is true of it.

    Attributes:
        vector (n,): v.
        residual (n,): y - K v, a true residual in the data's dtype.
        report: steps, relative residual, whether the gap met epsilon.
        gap: 1/2 r^T Q^{-1} r in nats: how far the bound is at most from its value at v = K^{-1} y.
    """

    vector: Tensor
    residual: Tensor
    report: SolveReport
    gap: float


@dataclass(frozen=True)
class AuxiliarySolver:
    """Preconditioned conjugate gradients for K v = y, stopped by nats of evidence.

    Args:
        epsilon: stop once 1/2 r^T Q^{-1} r is at most this many nats.
        max_iterations: steps at most; a solve cut short is still usable, and says so.
        restart_every: steps between true residuals with a fresh direction.
        product_dtype: "float32" runs the products of the steps at half the cost and corrects them
            by true residuals in the data's dtype, of which the last one is what is returned.
        memory_budget: bytes that products may hold.
        backend: of the kernel matrix; None chooses.

    Raises:
        ConfigError: an option out of range.
    """

    epsilon: float = 1.0
    max_iterations: int = 100
    restart_every: int = 40
    product_dtype: Literal["float32", "float64"] = "float64"
    memory_budget: int = 2**30
    backend: BackendName | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        if not self.epsilon > 0.0:
            raise ConfigError(f"epsilon is in nats and must be positive, got {self.epsilon}")
        for name in ("max_iterations", "restart_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.product_dtype not in REDUCED:
            raise ConfigError(
                f"product_dtype={self.product_dtype}: expected one of {', '.join(REDUCED)}"
            )
        if self.memory_budget < 1:
            raise ConfigError(f"memory_budget is in bytes and cannot be {self.memory_budget}")

    def matrix(self, kernel: Kernel, x: Tensor, noise: Tensor) -> NoisyKernelMatrix:
        """K with this solver's options."""
        return NoisyKernelMatrix(
            kernel,
            x,
            noise,
            reduced=REDUCED[self.product_dtype],
            memory_budget=self.memory_budget,
            backend=self.backend,
        )

    def solve(
        self,
        matrix: NoisyKernelMatrix,
        nystrom: NystromMatrix,
        target: Tensor,
        start: Tensor | None,
        *,
        warn: bool = False,
    ) -> Auxiliary:
        """Find v from ``start`` (None: zero).

        A solve cut short falls back on v = 0 where that gives the higher bound, which keeps the
        conjugate gradient bound above the collapsed one.

        Args:
            matrix, nystrom: K and Q <= K.
            target (n,): y - m(x).
            start (n,): where to begin.
            warn: warn (``UnconvergedWarning``) of a solve cut short.

        Raises:
            DataError: targets that are not finite.
        """
        require_finite(target)
        if start is not None and not bool(start.any()):
            start = None
        found = conjugate_gradients(
            matrix,
            target,
            preconditioner=nystrom,
            x0=start,
            stop=EvidenceBound(self.epsilon),
            max_iterations=self.max_iterations,
            product_dtype=REDUCED[self.product_dtype],
            refresh_every=self.restart_every,
            restart=True,
            on_failure="return",
        )
        vector, residual, report = found.solution, found.residual, found.report
        if not report.converged:
            kept = _upper_quadratic(nystrom, target, vector, residual)
            if not kept <= _upper_quadratic(nystrom, target, torch.zeros_like(target), target):
                vector, residual = torch.zeros_like(target), target.clone()
                report = SolveReport(report.iterations, 1.0, False, f"{report.reason}; v = 0 kept")
            if warn:
                warnings.warn(
                    f"auxiliary vector after {report.iterations} steps: {report.reason}",
                    UnconvergedWarning,
                    stacklevel=2,
                )
        return Auxiliary(vector, residual, report, _gap(nystrom, residual))

    def keep(
        self, matrix: NoisyKernelMatrix, nystrom: NystromMatrix, target: Tensor, vector: Tensor
    ) -> Auxiliary:
        """The vector as it is, with its residual at this K. Cost: one product."""
        require_finite(target)
        residual = target - matrix(vector)
        gap = _gap(nystrom, residual)
        size = float(torch.linalg.vector_norm(residual) / torch.linalg.vector_norm(target))
        reason = f"v was kept: bound on the evidence error {gap:.3g} nats"
        return Auxiliary(vector, residual, SolveReport(0, size, gap <= self.epsilon, reason), gap)


def require_finite(target: Tensor) -> None:
    """Raise DataError unless all of y - m(x) is finite."""
    finite = torch.isfinite(target)
    if not bool(finite.all()):
        bad = (~finite).nonzero()[:, 0]
        raise DataError(
            f"{bad.numel()} of {target.numel()} targets are not finite once the mean function is "
            f"subtracted, the first in row {int(bad[0])}; remove those rows or fill them in"
        )


def _gap(nystrom: NystromMatrix, residual: Tensor) -> float:
    return 0.5 * float(torch.dot(residual, nystrom.solve(residual)))


def _upper_quadratic(
    nystrom: NystromMatrix, target: Tensor, vector: Tensor, residual: Tensor
) -> float:
    """r^T Q^{-1} r + v^T (y + r), above y^T K^{-1} y for every v."""
    value = torch.dot(residual, nystrom.solve(residual)) + torch.dot(vector, target + residual)
    return float(value)
