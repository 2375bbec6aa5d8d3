"""Block-diagonal Gaussian over weights: a dense covariance within each cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.methods.weight_space.cells import Cells
from gpx.methods.weight_space.mean_field import MeanFieldWeights
from gpx.tensor_checks import check_one_of

STORAGE = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
"""Dtypes of covariance roots by option value."""

STATE_LIMIT = 8 * 2**30
"""Most bytes that the covariance may take; larger ones raise ConfigError."""


class CellCovariance(nn.Module):
    """Sigma_g = R_g^T R_g for the cells g solved so far; R_g lower triangular, packed.

    Roots are replaced and never changed in place, so that a posterior can share them with a model
    that is trained further, and a checkpoint of both stores them once.

    Args:
        storage: ``float16``, ``float32`` or ``float64``. float16 keeps three digits, which changes
            predictive variances by about 1e-4 of their value. It is too coarse where a root is
            inverted, as ``StochasticBlockSteps`` does: the error grows with its condition number.

    State: b (b + 1) / 2 numbers per solved cell of b columns.
    """

    def __init__(self, storage: str = "float32") -> None:
        super().__init__()
        check_one_of(STORAGE, covariance_storage=storage)
        self.storage = STORAGE[storage]
        self.roots: dict[int, Tensor] = {}

    def store(self, cell: int, root: Tensor) -> None:
        """Keep the lower-triangular ``root`` (b, b) of ``cell``."""
        self.roots[cell] = root[_lower(root.shape[0], root.device)].to(self.storage)

    def root(self, cell: int, dtype: torch.dtype) -> Tensor | None:
        """R (b, b) of ``cell``, zero above the diagonal; None if it was not solved."""
        packed = self.roots.get(cell)
        if packed is None:
            return None
        size = (math.isqrt(8 * packed.shape[0] + 1) - 1) // 2
        out = torch.zeros(size, size, dtype=dtype, device=packed.device)
        out[_lower(size, packed.device)] = packed.to(dtype)
        return out

    def share(self) -> CellCovariance:
        """A second object with the same root tensors; O(cells)."""
        other = CellCovariance()
        other.storage = self.storage
        other.roots = dict(self.roots)
        return other

    def get_extra_state(self) -> dict[str, Any]:
        """Roots by cell, for checkpoints."""
        return {str(cell): packed for cell, packed in self.roots.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore ``get_extra_state``."""
        self.roots = {int(cell): packed for cell, packed in state.items()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CellCovariance:
        super()._apply(fn, recurse)
        # follow a change of device but not of dtype, which ``storage`` sets
        for cell, packed in self.roots.items():
            self.roots[cell] = packed.to(fn(packed[:1].clone()).device)
        return self


def _lower(size: int, device: torch.device) -> Any:
    """Index of the lower triangle of a (size, size) matrix, row by row."""
    if device.type == "cpu":
        return torch.ones(size, size, dtype=torch.bool).tril_()
    # indexing with a mask would synchronise a GPU to count its entries
    return tuple(torch.tril_indices(size, size, device=device).unbind(0))


class BlockDiagonalWeights(MeanFieldWeights):
    """q(w) = N(mean, Sigma), Sigma block-diagonal with one dense block per cell.

    Between mean-field (cells of one column) and full (one cell). Cells that have not been solved
    have closed-form mean-field scales, so the family starts as mean-field and becomes
    block-diagonal cell by cell.

    For the evidence bound each cell has four numbers in ``terms``: tr(Phi_g^T Phi_g Sigma_g),
    log|Sigma_g|, tr(S_g Sigma_g) and mu_g^T S_g mu_g.

    With ``solved_only`` the model consists of the solved cells only, with a prior precision scaled
    down accordingly; functions of other cells have no variance.

    Args:
        cells: partition of the columns.
        storage: dtype of the covariance roots (CellCovariance).

    Raises:
        ConfigError: the covariance would take more than STATE_LIMIT bytes.

    State: 2 m numbers and (b + 1) m / 2 for solved cells of b columns.
    """

    def __init__(self, cells: Cells, storage: str = "float32") -> None:
        super().__init__(cells.num_blocks, cells.block_size, "closed_form")
        self.cells = cells
        self.covariance = CellCovariance(storage)
        columns = cells.num_blocks * cells.block_size
        size = columns * (cells.largest + 1) // 2 * self.covariance.storage.itemsize
        if size > STATE_LIMIT:
            raise ConfigError(
                f"covariance=block_diagonal with blocks of {cells.largest} of {columns:,} columns "
                f"takes {size / 2**30:.0f} GiB; lower block_columns=, or use "
                "covariance=mean_field, which takes 2 numbers per column"
            )
        self.terms = torch.zeros(cells.num_cells, 4, dtype=torch.float64)
        self.solved_only = False

    def is_solved(self, cell: int) -> bool:
        """Whether ``cell`` has a covariance block of its own."""
        return cell in self.covariance.roots

    def is_diagonal_column(self, blocks: Tensor) -> Tensor:
        """Mask (L, W) of columns of cells not solved yet; none with ``solved_only``."""
        if self.solved_only:
            return torch.zeros(blocks.shape[0], self.block_size, dtype=torch.bool).to(blocks.device)
        table = torch.ones(self.num_blocks, self.block_size, dtype=torch.bool)
        for cell in self.covariance.roots:
            self.cells.write(table, cell, torch.zeros(self.cells.size(cell), dtype=torch.bool))
        return table.to(blocks.device)[blocks]

    @property
    def partly_solved(self) -> bool:
        """Whether some cells are no part of the model yet (``solved_only``)."""
        return self.solved_only and len(self.covariance.roots) < self.cells.num_cells

    def covariance_blocks(self, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """As in ``MeanFieldWeights``: the blocks of the solved cells."""
        for cell in self.covariance.roots:
            root = self.covariance.root(cell, dtype)
            assert root is not None
            yield self.cells.columns(cell, self.mean.device), root

    def get_extra_state(self) -> dict[str, Any]:
        """``terms``, which stay float64 whatever the dtype of the model, and ``solved_only``."""
        return {"terms": self.terms, "solved_only": self.solved_only}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore ``get_extra_state``."""
        self.terms = state["terms"].clone()
        self.solved_only = bool(state.get("solved_only", False))
