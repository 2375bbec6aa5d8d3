"""Solves with the covariance of the observed targets of several outputs, once factorised."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.inference.several_targets.log_density import TargetsCovariance
from gpx.inference.several_targets.observed import ObservedTargets
from gpx.linalg import upper_solve


class FactoredTargets:
    """C = covariance of the N observed targets plus noise, factorised.

    Args:
        covariance: factorises C.
        noise (p,) or (n, p): variances of the outputs, or of every cell.

    Attributes:
        factor (N, N): upper, U with U^T U = C (+ reported jitter).
        report: of the factorisation.

    Cost: N^3/3 multiply-adds and one N x N array.
    """

    def __init__(self, covariance: TargetsCovariance, noise: Tensor) -> None:
        self.observed: ObservedTargets = covariance.targets
        self.factor, self.report = covariance.factor(noise)

    def solve(self, right: Tensor) -> Tensor:
        """C^{-1} r for r (..., n, p); missing targets are ignored, and 0 in the result."""
        entries = self.known(right)
        columns = entries.reshape(math.prod(entries.shape[:-1]), self.observed.count).mT
        solved = upper_solve(self.factor, columns.contiguous()).mT
        full = torch.zeros_like(right)
        full[..., self.observed.rows, self.observed.outputs] = solved.reshape(entries.shape)
        return full

    def known(self, values: Tensor) -> Tensor:
        """Of values (..., n, p) those of the observed targets, (..., N)."""
        return values[..., self.observed.rows, self.observed.outputs]

    def root(self, cross: Tensor) -> Tensor:
        """Rows U^{-T} c (t, p, N), whose products are reductions of covariance.

        Args:
            cross (t, p, N): covariances of the outputs at t inputs with the observed targets.
        """
        flat = cross.flatten(0, 1)
        found = torch.linalg.solve_triangular(self.factor.mT, flat.mT, upper=False)
        return found.mT.reshape(cross.shape)
