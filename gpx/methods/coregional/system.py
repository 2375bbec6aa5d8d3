"""Solves with the covariance sum_q B_q (x) K_q + noise of several outputs, with or without gaps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.dense_factor import kernel_matrix, warn_of_rounding
from gpx.inference.several_targets import FactoredTargets, ObservedTargets
from gpx.kernels.base import Kernel
from gpx.linalg import require_memory
from gpx.methods.coregional.covariance import ObservedCovariance


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
    """C = sum_q B_q (x) K_q + noise of the observed targets: solves and reductions of variance."""

    @abstractmethod
    def solve(self, right: Tensor) -> Tensor:
        """C^{-1} r for r (..., n, p); missing targets are ignored, and 0 in the result."""

    @abstractmethod
    def explained(self, crosses: Sequence[Tensor]) -> Tensor:
        """Prior minus posterior covariance of the outputs (t, p, p) at each of t inputs.

        Args:
            crosses (t, n): k of each latent process between these inputs and the training inputs.
        """

    @abstractmethod
    def explained_jointly(self, crosses: Sequence[Tensor]) -> Tensor:
        """The same reduction (t, p, t, p) for the outputs at all pairs of t inputs.

        Args:
            crosses (t, n): as for ``explained``.
        """


EIGEN_ARRAYS = 4
"""n x n arrays that the eigendecomposition holds: K, its vectors, two of workspace (syevd)."""


class CompleteOutputs(OutputsSystem):
    """One latent, no target missing: p independent processes share an eigendecomposition of K.

    Warns if float32 has too few digits (``FLOAT32_LIMIT`` of ``gpx.inference.dense_factor``).

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

    def explained(self, crosses: Sequence[Tensor]) -> Tensor:
        """As in ``OutputsSystem``. Cost: n^2 multiply-adds a row."""
        (cross,) = crosses
        variances, mix, _ = self.outputs
        reductions = (cross @ self.vectors).square() @ self.inverse * variances.square()
        return (mix * reductions[:, None, :]) @ mix.mT

    def explained_jointly(self, crosses: Sequence[Tensor]) -> Tensor:
        """As in ``OutputsSystem``. Cost: n^2 multiply-adds a row, p n a pair of rows."""
        (cross,) = crosses
        variances, mix, _ = self.outputs
        rotated = cross @ self.vectors
        weights = self.inverse * variances.square()
        each = torch.stack([(rotated * own) @ rotated.mT for own in weights.unbind(1)], -1)
        return torch.einsum("tuk,ik,jk->tiuj", each, mix, mix)


class ObservedOutputs(FactoredTargets, OutputsSystem):
    """With missing targets, or several latents: one factorisation for the N observed targets.

    Args:
        kernels, betweens (p, p): k_q and B_q of each latent process.
        noise (p,) or (n, p): variances of the outputs, or of every cell.
        x (n, d), y (n, p): NaN where a target is missing.

    Cost: N^3/3 multiply-adds and one N x N array for N observed targets.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        betweens: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        noise: Tensor,
    ) -> None:
        self.covariance = ObservedCovariance(kernels, betweens, x, ObservedTargets(y))
        super().__init__(self.covariance, noise)

    def explained(self, crosses: Sequence[Tensor]) -> Tensor:
        """As in ``OutputsSystem``. Cost: p N^2 multiply-adds a row."""
        root = self.root(self.covariance.cross(crosses))
        return root @ root.mT

    def explained_jointly(self, crosses: Sequence[Tensor]) -> Tensor:
        """As in ``OutputsSystem``. Cost: p N^2 multiply-adds a row, p^2 N a pair of rows."""
        root = self.root(self.covariance.cross(crosses))
        flat = root.flatten(0, 1)
        return (flat @ flat.mT).view(*root.shape[:2], *root.shape[:2])
