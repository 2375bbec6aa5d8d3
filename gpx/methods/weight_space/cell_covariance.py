"""Covariance blocks of a Gaussian over weights, as packed triangular roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError

STORAGE = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


class CellCovariance(nn.Module):
    """Sigma_g = R_g^T R_g for the cells g that were solved; R_g lower triangular, packed.

    Roots come one by one as cells are solved, so the state grows with what has been done. They are
    replaced and never changed in place: whoever shares them (a posterior) is not affected by later
    steps, and a checkpoint of both holds them once.

    Args:
        storage: ``float16``, ``float32`` or ``float64``. Entries of R are at most the prior
            standard deviation of a weight; float16 keeps three digits of each, which moves a
            predictive variance by about 1e-4 of itself.

    State: b (b + 1) / 2 numbers per solved cell of b columns.
    """

    def __init__(self, storage: str = "float32") -> None:
        super().__init__()
        if storage not in STORAGE:
            raise ConfigError(f"covariance_storage={storage}: expected one of {', '.join(STORAGE)}")
        self.storage = STORAGE[storage]
        self.roots: dict[int, Tensor] = {}

    def store(self, cell: int, root: Tensor) -> None:
        """Keep the lower-triangular ``root`` (b, b) of ``cell``."""
        self.roots[cell] = root[_lower(root.shape[0], root.device)].to(self.storage)

    def root(self, cell: int, dtype: torch.dtype) -> Tensor | None:
        """R (b, b) of ``cell``, zeros above the diagonal; None where it was not solved."""
        packed = self.roots.get(cell)
        if packed is None:
            return None
        size = int(((8 * packed.shape[0] + 1) ** 0.5 - 1) / 2 + 0.5)
        out = torch.zeros(size, size, dtype=dtype, device=packed.device)
        out[_lower(size, packed.device)] = packed.to(dtype)
        return out

    def share(self) -> CellCovariance:
        """Another holder of the same roots; O(cells)."""
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
        # a change of device is followed, a change of dtype is not: storage is a choice of its own
        for cell, packed in self.roots.items():
            self.roots[cell] = packed.to(fn(packed[:1].clone()).device)
        return self


def _lower(size: int, device: torch.device) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool, device=device).tril_()
