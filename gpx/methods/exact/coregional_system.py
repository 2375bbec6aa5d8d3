"""Solves with the covariance B (x) K + noise of several outputs, with or without gaps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DataError
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.linalg import require_memory, upper_solve
from gpx.methods.exact.model import kernel_matrix, noisy_cholesky, warn_of_rounding


class OutputsKernel(Kernel):
    """k(x, x') B_ij on inputs whose last column is the number of an output.

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
        """The row of B's root (n, p) for the output of each input.

        Products of these rows are entries of B. Indexing B itself would need two gathers of n x n
        entries and a device synchronisation.
        """
        return self.between.root.tril()[x[:, -1].long()]


class ObservedTargets(NamedTuple):
    """The N targets that are not missing, as one list.

    Attributes:
        rows (N,), outputs (N,): their indices in y (n, p).
        inputs (N, d + 1): their inputs for ``OutputsKernel``.
    """

    rows: Tensor
    outputs: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> ObservedTargets:
        """The entries of y (n, p) that are not NaN.

        Raises:
            DataError: an output, or all of them, have no target.
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
    """B and the noise jointly diagonalised: p independent outputs of unit noise, linearly mixed.

    With S the diagonal matrix of noise variances, S^{-1/2} B S^{-1/2} = U diag(variances) U^T.

    Attributes:
        variances (p,): of the independent outputs, non-negative.
        mix (p, p): S^{1/2} U; outputs = independent outputs @ mix^T.
        unmix (p, p): S^{-1/2} U; independent outputs = outputs @ unmix.
    """

    variances: Tensor
    mix: Tensor
    unmix: Tensor

    @classmethod
    def of(cls, between: Tensor, noise: Tensor) -> WhitenedOutputs:
        """Diagonalise B (p, p) and noise variances (p,). Cost: O(p^3)."""
        deviation = noise.sqrt()
        variances, turn = torch.linalg.eigh(between / (deviation * deviation[:, None]))
        return cls(variances.clamp_min(0.0), deviation[:, None] * turn, turn / deviation[:, None])


class OutputsSystem(ABC):
    """C = B (x) K + noise of the observed targets: solves and reductions of variance."""

    @abstractmethod
    def solve(self, right: Tensor) -> Tensor:
        """C^{-1} r for r (..., n, p); missing targets are ignored, and 0 in the result."""

    @abstractmethod
    def explained(self, cross: Tensor) -> Tensor:
        """Prior minus posterior covariance of the outputs (t, p, p) at each of t inputs.

        Args:
            cross (t, n): k between these inputs and the training inputs.
        """


EIGEN_ARRAYS = 4
"""n x n arrays that the eigendecomposition holds: K, its vectors, two of workspace (syevd)."""


class CompleteOutputs(OutputsSystem):
    """Without missing targets: p independent processes that share an eigendecomposition of K.

    Warns if float32 has too few digits (``FLOAT32_LIMIT`` of ``gpx.methods.exact.model``).

    Args:
        kernel, x (n, d): K = k(x, x).
        between (p, p): B.
        noise (p,): variances.

    Cost: about 9 n^3 operations once, one n x n array kept; 2 n^2 p multiply-adds per solve.

    Raises:
        ConfigError: EIGEN_ARRAYS n x n arrays do not fit into free memory.
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
        if n and x.dtype == torch.float32:
            ratio = kernel.diagonal(x).max() * self.outputs.variances.max()
            warn_of_rounding(n * float(ratio) * torch.finfo(x.dtype).eps)
        values, self.vectors = torch.linalg.eigh(kernel_matrix(kernel, x))
        variances = self.outputs.variances
        self.inverse = 1.0 / (values.clamp_min(0.0)[:, None] * variances + 1.0)  # (n, p)

    def solve(self, right: Tensor) -> Tensor:
        """As in ``OutputsSystem``."""
        rotated = self.vectors.mT @ (right @ self.outputs.unmix)
        return self.vectors @ (rotated * self.inverse) @ self.outputs.unmix.mT

    def explained(self, cross: Tensor) -> Tensor:
        """As in ``OutputsSystem``. Cost: n^2 multiply-adds a row."""
        variances, mix, _ = self.outputs
        reductions = (cross @ self.vectors).square() @ self.inverse * variances.square()
        return (mix * reductions[:, None, :]) @ mix.mT


class ObservedOutputs(OutputsSystem):
    """With missing targets: one factorisation of the covariance of the N observed ones.

    Args:
        kernel, between, noise: as for ``CompleteOutputs``, B as a module.
        x (n, d), y (n, p): NaN where a target is missing.

    Cost: N^3/3 multiply-adds and one N x N array for N observed targets.
    """

    def __init__(
        self, kernel: Kernel, x: Tensor, y: Tensor, between: Coregionalisation, noise: Tensor
    ) -> None:
        self.observed = ObservedTargets.of(x, y)
        self.between = between.matrix()
        self.factor, self.report = noisy_cholesky(
            OutputsKernel(kernel, between), self.observed.inputs, noise[self.observed.outputs]
        )

    def solve(self, right: Tensor) -> Tensor:
        """As in ``OutputsSystem``."""
        rows, outputs, _ = self.observed
        entries = right[..., rows, outputs]
        solved = upper_solve(self.factor, entries.reshape(-1, len(rows)).mT.contiguous()).mT
        full = torch.zeros_like(right)
        full[..., rows, outputs] = solved.reshape(entries.shape)
        return full

    def explained(self, cross: Tensor) -> Tensor:
        """As in ``OutputsSystem``. Cost: p N^2 multiply-adds a row."""
        rows, outputs, _ = self.observed
        t, p = len(cross), len(self.between)
        covariance = (cross[:, None, rows] * self.between[:, outputs]).reshape(t * p, len(rows))
        root = torch.linalg.solve_triangular(self.factor.mT, covariance.mT, upper=False)
        root = root.mT.reshape(t, p, len(rows))
        return root @ root.mT
