"""Eigenfunctions of a grid in the form that weight-space models take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.bases.fourier.random_fourier import frequencies_per_block
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel


class GridFeatures(GridEigenfunctions):
    """``GridEigenfunctions`` of a fixed number, in blocks; for ``approx=qsgp approx.basis=grief``.

    The model that owns it calls ``place_and_select`` with its training inputs before the first use.
    The choice of eigenfunctions then stays, so that weight j belongs to one function for good.

    Args:
        kernel: one that factors over the columns, with ``ard_num_dims`` (it says d).
        num_basis: m; the grid must have as many points.
        seed: there is nothing to draw.
        block_frequencies: blocks have at most twice as many columns.

    Raises:
        ConfigError: the kernel does not factor, or does not say d.
    """

    def __init__(
        self, kernel: nn.Module, num_basis: int, seed: int = 0, block_frequencies: int = 500
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise ConfigError(f"approx.basis=grief needs a kernel, got a {type(kernel).__name__}")
        d = getattr(kernel, "ard_num_dims", None)
        if d is None:
            raise ConfigError(
                "approx.basis=grief needs a kernel that knows its number of inputs: set "
                "kernel.ard_num_dims"
            )
        if block_frequencies < 1:
            raise ConfigError(f"block_frequencies={block_frequencies} must be at least 1")
        super().__init__(kernel, d, num_basis)
        self.block_size = frequencies_per_block(num_basis, 2 * block_frequencies)
        self.per_block = self.block_size

    def place_and_select(self, x: Tensor) -> None:
        """Build the grid for training inputs x (n, d), and choose its eigenfunctions.

        Raises:
            ConfigError: the grid has fewer points than there are to be functions.
        """
        self.place(x)
        if self.num_basis < self.most:
            raise ConfigError(
                f"approx.num_basis={self.most}, but the inducing grid has only {self.num_basis} "
                f"points: set approx.num_basis to at most {self.num_basis}"
            )
        self.raise_lengthscales(x)
        self.select()

    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """The columns of ``blocks`` (L,), in order: (n, L * block_size)."""
        every = torch.arange(self.num_blocks, device=blocks.device)
        return self(x, None if torch.equal(blocks, every) else self.columns_of(blocks))

    def mean_column_square(self) -> Tensor:
        """outputscale / m, 0-d: the mean over columns of phi_j(x)^2 where nothing is missed."""
        return self.factors.outputscale / self.num_basis
