"""Kernel functions at inducing points with the kernel matrix as prior precision: Phi = S = K."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from gpx.bases.base import Basis, Spent, check_inputs, never
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel


class InducingPoints(Basis):
    """phi_i(x) = k(x, z_i), w ~ N(0, S^-1) with the dense precision S_ij = k(z_i, z_j).

    With the training inputs as centres Phi = S = K, the prior over the training values is exactly
    that of the kernel (K K^-1 K = K) and the posterior mean weights are (K + noise I)^-1 y, those
    of the exact Gaussian process. Neither Phi nor S is ever stored: any block is evaluated on
    demand. Blocks have one column, because any subset of columns costs the same.

    Args:
        kernel: any covariance function.
        centres (m, d): z_i, copied.

    Cost: O(n len(columns) d) time, O(n len(columns)) memory.
    Source: QSGP paper, inducing-point experiments and appendix.
    """

    data_sized = ("centres",)
    kernel: Kernel
    centres: Tensor

    def __init__(self, kernel: Kernel, centres: Tensor) -> None:
        super().__init__()
        check_inputs(centres, "InducingPoints")
        if centres.shape[0] < 1:
            raise ConfigError("an inducing-point basis needs at least one centre")
        self.kernel = kernel
        self.num_basis, self.num_inputs = centres.shape
        self.register_buffer("centres", centres.detach().clone())

    def _at(self, columns: Tensor | None) -> Tensor:
        return self.centres if columns is None else self.centres[columns]

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """k(x, z) at any columns: (n, len(columns)) or (n, m)."""
        check_inputs(x, "InducingPoints")
        return self.kernel.evaluate(x, self._at(columns).to(x.dtype))

    def precision(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """S at rows and columns: (len(rows), len(columns)); all where None."""
        return self.kernel.evaluate(self._at(rows), self._at(columns))

    def precision_diagonal(self, columns: Tensor | None = None) -> NoReturn:
        """Always raises ConfigError: S is dense.

        log|S| of a dense S has no cheap unbiased estimate.
        """
        raise ConfigError(
            "kernel functions at training points have the dense prior precision S = K, and a "
            "diagonal one is needed here; that basis is for model=Reweighted(), QSGPInducing() or "
            "QSRVM(), this model takes random Fourier features"
        )

    def mean_column_square(self) -> Tensor:
        """A reference for phi_r(x)^2: the squared prior variance at the first centre, 0-d."""
        return self.kernel.diagonal(self.centres[:1])[0].square()

    def subset(self, columns: Tensor) -> InducingPoints:
        """The centres ``columns`` (k,) alone."""
        return InducingPoints(self.kernel, self.centres[columns])

    @torch.no_grad()
    def column_squares(self, x: Tensor, *, chunk: int = 512) -> Tensor:
        """phi_r^T phi_r over the rows of x (n, d): (m,) float64, streamed; n m kernel entries."""
        total = torch.zeros(self.num_basis, dtype=torch.float64, device=x.device)
        for rows in x.split(chunk):
            total += self(rows).square().sum(0)
        return total


class TrainingPoints(InducingPoints):
    """Kernel functions at the training inputs, or at a random subset of them.

    Args:
        kernel: any covariance function.
        num_basis: largest m.
        num_inputs: d.
        num_data: n; m is at most n.

    Source: Tipping, "Sparse Bayesian learning and the relevance vector machine", 2001.
    """

    def __init__(self, kernel: Kernel, num_basis: int, num_inputs: int, num_data: int) -> None:
        super().__init__(kernel, torch.zeros(min(num_data, num_basis), num_inputs))

    def start(
        self,
        x: Tensor,
        residual: Tensor,
        noise: Tensor,
        *,
        generator: torch.Generator,
        spent: Spent = never,
    ) -> str:
        """Draw the centres from x (n, d)."""
        draw_centres(self.centres, x, generator)
        return super().start(x, residual, noise, generator=generator, spent=spent)


def draw_centres(centres: Tensor, x: Tensor, generator: torch.Generator) -> None:
    """Copy different random rows of x (n, d), in their order, to ``centres`` (m, d).

    Raises:
        ConfigError: there are fewer rows than centres.
    """
    if len(x) < len(centres):
        raise ConfigError(
            f"{len(centres)} kernel functions need as many training inputs as centres, and there "
            f"are only {len(x)}; set num_data={len(x)}"
        )
    chosen = torch.randperm(len(x), generator=generator, device=x.device)[: len(centres)]
    centres.copy_(x[chosen.sort().values])
