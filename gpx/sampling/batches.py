"""Mini-batches as index draws on the device, a function of seed and step alone."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.sampling.seeds import derive_seed


class Batches:
    """Rows of step t: a slice of a fresh random permutation per epoch.

    Every batch has the same size (a remainder at the end of an epoch is skipped), so each one alone
    is a uniform sample without replacement, as unbiased estimators need. The order depends on
    (seed, epoch) only: a resumed run draws the same batches without any stored state.

    Args:
        num_data: n.
        batch_size: rows per batch; all n where there are fewer (the trainer says so).
        seed: of the run.
        device: where the indices live.

    Cost: O(n) once per epoch, O(batch_size) per step.
    """

    def __init__(self, num_data: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.num_data = num_data
        self.batch_size = min(batch_size, num_data)
        self.per_epoch = num_data // self.batch_size
        self._seed = seed
        self._device = device
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> Tensor:
        """Row indices (batch_size,) of ``step``."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            # drawn on the CPU so that every device sees the same batches
            generator = torch.Generator().manual_seed(derive_seed(self._seed, f"epoch {epoch}"))
            self._order = torch.randperm(self.num_data, generator=generator).to(self._device)
            self._epoch = epoch
        start = position * self.batch_size
        return self._order[start : start + self.batch_size]
