"""Solves with the covariance B (x) K + noise of several outputs, complete or with gaps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DataError
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.linalg import require_memory, upper_solve
from gpx.methods.exact.model import kernel_matrix, noisy_cholesky


class OutputsKernel(Kernel):
    """k(x, x') B_ij between pairs of inputs and the number of an output, which is the last column.

    Args:
        of_inputs: k.
        between: B.
    """

    def __init__(self, of_inputs: Kernel, between: Coregionalisation) -> None:
        super().__init__()
        self.of_inputs, self.between = of_inputs, between

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        left, right = self._roots(x1), self._roots(x2)
        return self.of_inputs.evaluate(x1[:, :-1], x2[:, :-1]) * (left @ right.mT)

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self.of_inputs.diagonal(x[:, :-1]) * self._roots(x).square().sum(1)

    def _roots(self, x: Tensor) -> Tensor:
        """Row of B's root of each (n, p).

        Their products are entries of B with their gradient; to pick n x n entries of B is to pick
        twice, and to wait to see that there are such.
        """
        return self.between.root.tril()[x[:, -1].long()]


class Observed(NamedTuple):
    """The targets that are there, one after the other.

    Attributes:
        rows (N,), outputs (N,): where they stand in y (n, p).
        inputs (N, d + 1): of ``OutputsKernel``.
    """

    rows: Tensor
    outputs: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Observed:
        """Those of y (n, p) that are not NaN.

        Raises:
            DataError: there are none, or none of an output.
        """
        rows, outputs = (~y.isnan()).nonzero(as_tuple=True)
        if not len(rows):
            raise DataError("every target is missing: y holds nothing but NaN")
        empty = y.isnan().all(0)
        if bool(empty.any()):
            raise DataError(
                f"output {int(empty.nonzero()[0])} of {y.shape[1]} has no target in any row; leave "
                "it out"
            )
        return cls(rows, outputs, torch.cat([x[rows], outputs.to(x)[:, None]], 1))


class WhitenedOutputs(NamedTuple):
    """B and the noise diagonalised at once: outputs as sums of p independent ones of unit noise.

    With S the diagonal matrix of noise variances, S^{-1/2} B S^{-1/2} = U diag(variances) U^T.

    Attributes:
        variances (p,): of the independent outputs, in units of their noise; not negative.
        mix (p, p): S^{1/2} U; outputs = independent ones @ mix^T.
        unmix (p, p): S^{-1/2} U; independent ones = outputs @ unmix.
    """

    variances: Tensor
    mix: Tensor
    unmix: Tensor

    @classmethod
    def of(cls, between: Tensor, noise: Tensor) -> WhitenedOutputs:
        """Of B (p, p) and noise variances (p,). Cost: O(p^3)."""
        deviation = noise.sqrt()
        variances, turn = torch.linalg.eigh(between / (deviation * deviation[:, None]))
        return cls(variances.clamp_min(0.0), deviation[:, None] * turn, turn / deviation[:, None])


class OutputsSystem(ABC):
    """C = B (x) K + noise of the observed targets, for solves and for what they explain."""

    @abstractmethod
    def solve(self, right: Tensor) -> Tensor:
        """C^{-1} r for r (..., n, p); what stands at missing targets is not read, and is 0."""

    @abstractmethod
    def explained(self, cross: Tensor) -> Tensor:
        """What the targets take from the prior covariance of the outputs at one input.

        Args:
            cross (t, n): k between t inputs and the data's.

        Returns:
            (t, p, p).
        """


EIGEN_ARRAYS = 4
"""K, its vectors, and two that LAPACK's syevd, or cuSOLVER's, works in."""


class CompleteOutputs(OutputsSystem):
    """No target is missing: p independent processes, one eigendecomposition of K for all.

    Args:
        kernel, x (n, d): K = k(x, x).
        between (p, p): B.
        noise (p,): variances.

    Cost: some 9 n^3 operations once, afterwards one n x n array is kept; a solve 2 n^2 p products.

    Raises:
        ConfigError: EIGEN_ARRAYS n x n arrays do not fit into the memory that is left.
    """

    def __init__(self, kernel: Kernel, x: Tensor, between: Tensor, noise: Tensor) -> None:
        n = len(x)
        require_memory(
            EIGEN_ARRAYS * n * n * x.element_size(),
            x.device,
            f"the eigendecomposition of the kernel matrix of {n} training points",
            "use model=SVGP() with likelihood=MixedOutputs(), fewer points, or dtype=float32",
        )
        self.outputs = WhitenedOutputs.of(between, noise)
        values, self.vectors = torch.linalg.eigh(kernel_matrix(kernel, x))
        variances = self.outputs.variances
        self.inverse = 1.0 / (values.clamp_min(0.0)[:, None] * variances + 1.0)  # (n, p)

    def solve(self, right: Tensor) -> Tensor:
        """As in ``OutputsSystem``."""
        turned = self.vectors.mT @ (right @ self.outputs.unmix)
        return self.vectors @ (turned * self.inverse) @ self.outputs.unmix.mT

    def explained(self, cross: Tensor) -> Tensor:
        """As in ``OutputsSystem``. Cost: n^2 multiply-adds a row."""
        variances, mix, _ = self.outputs
        shares = (cross @ self.vectors).square() @ self.inverse * variances.square()
        return (mix * shares[:, None, :]) @ mix.mT


class ObservedOutputs(OutputsSystem):
    """Some targets are missing: one factorisation over those that are there.

    Args:
        kernel, between, noise: as for ``CompleteOutputs``, B as a kernel.
        x (n, d), y (n, p): NaN where a target is missing.

    Cost: N^3/3 multiply-adds and one N x N array for N observed targets.
    """

    def __init__(
        self, kernel: Kernel, x: Tensor, y: Tensor, between: Coregionalisation, noise: Tensor
    ) -> None:
        self.seen = Observed.of(x, y)
        self.between = between.matrix()
        pairs = OutputsKernel(kernel, between)
        spread = noise[self.seen.outputs]
        self.factor, self.report = noisy_cholesky(pairs, self.seen.inputs, spread)

    def solve(self, right: Tensor) -> Tensor:
        """As in ``OutputsSystem``."""
        rows, outputs, _ = self.seen
        found = right[..., rows, outputs]
        flat = upper_solve(self.factor, found.reshape(-1, len(rows)).mT.contiguous()).mT
        made = torch.zeros_like(right)
        made[..., rows, outputs] = flat.reshape(found.shape)
        return made

    def explained(self, cross: Tensor) -> Tensor:
        """As in ``OutputsSystem``. Cost: p N^2 multiply-adds a row."""
        rows, outputs, _ = self.seen
        t, p = len(cross), len(self.between)
        wide = (cross[:, None, rows] * self.between[:, outputs]).reshape(t * p, len(rows))
        root = torch.linalg.solve_triangular(self.factor.mT, wide.mT, upper=False)
        each = root.mT.reshape(t, p, len(rows))
        return each @ each.mT
