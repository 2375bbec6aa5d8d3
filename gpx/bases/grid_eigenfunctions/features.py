"""Eigenfunctions of a grid as a basis of weight-space and re-weighted models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.bases.base import Spent, check_inputs, largest_divisor, never
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, PreparedColumns
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.bases.grid_eigenfunctions.start import choose_eigenfunctions, scales_for
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.tensor_checks import check_at_least


class GridFeatures(GridEigenfunctions):
    """``GridEigenfunctions`` chosen once, at the start, and evaluated in blocks.

    The choice is then fixed, so that weight j always belongs to the same function.

    Args:
        kernel, num_basis, num_inputs, grid, factor_jitter: as for ``GridEigenfunctions``.
        block_columns: largest number of columns per block.
        noise_first: before the choice, raise lengthscales that the grid cannot resolve and search
            for better ones; after it, set outputscale and noise variance to those of largest
            evidence (``fit_scales``), with models that support it.
        search_sweeps: of the search, see ``search_lengthscales``; 0: no search.

    Raises:
        ConfigError: the kernel does not factor, or an option out of range.
    """

    def __init__(
        self,
        kernel: Kernel,
        num_basis: int,
        num_inputs: int,
        grid: GridOptions | None = None,
        factor_jitter: float = 1e-12,
        block_columns: int = 1000,
        noise_first: bool = True,
        search_sweeps: int = 0,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise ConfigError(f"basis=GridFeatures() needs a kernel, got a {class_name(kernel)}")
        check_at_least(1, block_columns=block_columns)
        check_at_least(0, search_sweeps=search_sweeps)
        super().__init__(kernel, num_inputs, num_basis, grid, factor_jitter)
        self.block_columns = block_columns
        self.noise_first = noise_first
        self.search_sweeps = search_sweeps
        self._divide()

    def _divide(self) -> None:
        """Divide the functions into blocks."""
        self.block_size = largest_divisor(self.num_basis, self.block_columns)

    def place(self, x: Tensor) -> None:
        """As in ``GridEigenfunctions``."""
        super().place(x)
        self._divide()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._divide()

    def start(
        self,
        x: Tensor,
        residual: Tensor,
        noise: Tensor,
        *,
        generator: torch.Generator,
        spent: Spent = never,
    ) -> str:
        """Build the grid, choose its eigenfunctions; see ``choose_eigenfunctions``."""
        ratio = float(noise / self.factors.outputscale)
        chosen = choose_eigenfunctions(
            self,
            x,
            residual,
            ratio,
            fit=self.noise_first,
            sweeps=self.search_sweeps,
            generator=generator,
            spent=spent,
        )
        return chosen.note

    def fit_scales(
        self,
        statistics: SufficientStatistics,
        *,
        unit_noise: bool = False,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, str] | None:
        """As in ``Basis``; None without ``noise_first``. A fixed outputscale stays: factor one."""
        if not self.noise_first:
            return None
        before = self.factors.outputscale.detach().double()
        fixed = None if self.factors.learned_scales else torch.ones_like(before)
        given = None if noise is None else noise.double()
        factor, noise, remark = scales_for(statistics, self.factors.num_inputs, fixed, given)
        if unit_noise:
            factor, noise = factor / noise, torch.ones_like(noise)
        self.factors.set_outputscale(factor * before)
        # as it was set: fixed, above its floor and in the kernel's precision
        return self.factors.outputscale.detach().double() / before, noise, remark

    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """The columns of ``blocks`` (L,), in order: (n, L * block_size)."""
        return self(x, self._columns(blocks))

    def _columns(self, blocks: Tensor) -> Tensor | None:
        """Those of ``blocks`` (L,); None: all of them, in order."""
        every = torch.arange(self.num_blocks, device=blocks.device)
        return None if torch.equal(blocks, every) else self.columns_of(blocks)

    def features_of(self, blocks: Tensor) -> Callable[[Tensor], Tensor]:
        """As in ``Basis``; eigenproblems are solved once."""
        own = type(self)
        if (own.block_features, own.forward) != (GridFeatures.block_features, GridFeatures.forward):
            return super().features_of(blocks)  # a subclass has features of its own
        known: list[PreparedColumns] = []

        def features(x: Tensor) -> Tensor:
            check_inputs(x, "a grid of eigenfunctions")
            if not known:
                with torch.no_grad():
                    known.append(self.prepared(self._columns(blocks)))
            return self.evaluate(x, known[0])

        return features
