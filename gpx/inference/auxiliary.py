"""The auxiliary vector v near K^{-1} y of the conjugate gradient bound, and its solver."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpx.backends import BackendName
from gpx.inference.exact_solver import require_finite
from gpx.inference.noisy_kernel import NoisyKernel
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels.base import Kernel
from gpx.linalg import (
    EvidenceBound,
    SolveReport,
    UnconvergedWarning,
    budget_in_bytes,
    conjugate_gradients,
)
from gpx.tensor_checks import check_at_least, check_one_of, check_positive
from gpx.warned_line import users_line

PRODUCT_DTYPES = {"float32": torch.float32, "float64": None}
"""Choices of ``product_dtype``; None: the data's own dtype."""


@dataclass(frozen=True)
class Auxiliary:
    """Any vector v with its residual and the certificate that follows.

    Attributes:
        vector (n,): v.
        residual (n,): y - K v, a true residual in the data's dtype.
        report: steps, relative residual, whether the gap met epsilon.
        gap: 1/2 r^T Q^{-1} r in nats: the bound is at most this far from its value at v = K^{-1} y.
    """

    vector: Tensor
    residual: Tensor
    report: SolveReport
    gap: float


@dataclass(frozen=True)
class AuxiliarySolver:
    """Preconditioned conjugate gradients for K v = y, stopped by their error in nats of evidence.

    Args:
        epsilon: stop once 1/2 r^T Q^{-1} r is at most this many nats.
        max_iterations: largest number of steps; a solve cut short is still usable, and reports it.
        restart_every: steps between restarts from the true residual.
        product_dtype: "float32" runs the products of the steps at half the cost and corrects them
            by true residuals in the data's dtype; the last of these is returned.
        memory_budget: of kernel products, as in ``gpx.linalg.budget_in_bytes``. None: 1 GiB.
        backend: of the kernel matrix; None chooses.

    Raises:
        ConfigError: an option out of range.
    """

    epsilon: float = 1.0
    max_iterations: int = 100
    restart_every: int = 40
    product_dtype: Literal["float32", "float64"] = "float64"
    memory_budget: int | str | None = None
    backend: BackendName | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        check_positive(epsilon=self.epsilon, memory_budget=self.budget)
        check_at_least(1, max_iterations=self.max_iterations, restart_every=self.restart_every)
        check_one_of(PRODUCT_DTYPES, product_dtype=self.product_dtype)

    @property
    def budget(self) -> int:
        """``memory_budget`` in bytes."""
        return budget_in_bytes(self.memory_budget)

    def matrix(self, kernel: Kernel, x: Tensor, noise: Tensor) -> NoisyKernel:
        """K with this solver's options."""
        return NoisyKernel(
            kernel,
            x,
            noise,
            reduced=PRODUCT_DTYPES[self.product_dtype],
            memory_budget=self.budget,
            backend=self.backend,
        )

    def solve(
        self,
        matrix: NoisyKernel,
        nystrom: NystromMatrix,
        target: Tensor,
        start: Tensor | None,
        *,
        warn: bool = False,
    ) -> Auxiliary:
        """Solve for v.

        A solve cut short returns v = 0 where that gives the higher bound, so that the conjugate
        gradient bound is never below the collapsed one.

        Args:
            matrix, nystrom: K and Q <= K.
            target (n,): y - m(x).
            start (n,): first v; None: zero.
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
            product_dtype=PRODUCT_DTYPES[self.product_dtype],
            refresh_every=self.restart_every,
            restart=True,
            on_failure="return",
        )
        vector, residual, report = found.solution, found.residual, found.report
        if not report.converged:
            kept = quadratic_upper(nystrom, target, vector, residual)
            if not kept <= quadratic_upper(nystrom, target, torch.zeros_like(target), target):
                vector, residual = torch.zeros_like(target), target.clone()
                report = SolveReport(report.iterations, 1.0, False, f"{report.reason}; v = 0 kept")
            if warn:
                warnings.warn(
                    f"auxiliary vector after {report.iterations} steps: {report.reason}",
                    UnconvergedWarning,
                    stacklevel=users_line(),
                )
        return Auxiliary(vector, residual, report, _gap(nystrom, residual))

    def keep(
        self, matrix: NoisyKernel, nystrom: NystromMatrix, target: Tensor, vector: Tensor
    ) -> Auxiliary:
        """The given v, with its residual at this K. Cost: one product."""
        require_finite(target)
        residual = target - matrix(vector)
        gap = _gap(nystrom, residual)
        scale = torch.linalg.vector_norm(target).clamp(min=torch.finfo(target.dtype).tiny)
        size = float(torch.linalg.vector_norm(residual) / scale)
        reason = f"v was kept: bound on the evidence error {gap:.3g} nats"
        return Auxiliary(vector, residual, SolveReport(0, size, gap <= self.epsilon, reason), gap)


def _gap(nystrom: NystromMatrix, residual: Tensor) -> float:
    return 0.5 * float(torch.dot(residual, nystrom.solve(residual)))


def quadratic_lower(target: Tensor, vector: Tensor, residual: Tensor) -> Tensor:
    """v^T (y + r) = 2 y^T v - v^T K v <= y^T K^{-1} y with r = y - K v, for every v.

    Source: Burt thesis, sections 2.4.2 and 4.3.1.
    """
    return torch.dot(vector, target + residual).double()


def quadratic_upper(
    nystrom: NystromMatrix, target: Tensor, vector: Tensor, residual: Tensor
) -> Tensor:
    """v^T (y + r) + r^T Q^{-1} r >= y^T K^{-1} y, for every v. Source: as ``quadratic_lower``."""
    excess = torch.dot(residual, nystrom.solve(residual)).double()
    return quadratic_lower(target, vector, residual) + excess
