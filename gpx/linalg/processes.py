"""Work that several processes share: each computes a part, and all of them hold the result.

All processes run the same program on the same data with the same seeds, so that they take the same
decisions. What is costly asks ``sharing()`` for its part and puts the parts together; outside
``work_shared`` there is one process, and its part is the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """Those that share the work, seen from one of them.

    Attributes:
        number: of this one; the first, 0, writes files and speaks.
        count: how many there are.
    """

    number: int = 0
    count: int = 1

    def part(self, total: int) -> slice:
        """The entries of ``total`` that are this process's to compute; in order of the numbers."""
        step = -(-total // self.count)
        return slice(min(self.number * step, total), min((self.number + 1) * step, total))

    def add_up(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over the processes: one message for each dtype."""
        if self.count == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            message = torch.cat([tensor.reshape(-1) for tensor in alike])
            dist.all_reduce(message)
            pieces = message.split([tensor.numel() for tensor in alike])
            for tensor, piece in zip(alike, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))

    def put_together(self, part: Tensor, total: int) -> Tensor:
        """All rows (total, ...) from those of ``part(total)`` that each process has."""
        if self.count == 1:
            return part
        step = -(-total // self.count)
        padded = part.new_zeros(step, *part.shape[1:])
        padded[: len(part)] = part
        found = part.new_empty(step * self.count, *part.shape[1:])
        gather(found, padded)
        return found[:total]

    def agreed(self, *values: float) -> list[float]:
        """The largest of each over the processes; waits for all of them, but for no device."""
        if self.count == 1:
            return list(values)
        message = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(message, op=dist.ReduceOp.MAX)
        return message.tolist()

    def from_first(self, values: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process, so that rounding parts no ways."""
        if self.count > 1:
            for value in values:
                dist.broadcast(value, src=0)


gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Torch 2.13 gave it another name."""

ALONE = Processes()
_current = ALONE


def sharing() -> Processes:
    """The processes among which work is shared at this moment."""
    return _current


@contextmanager
def work_shared(processes: Processes) -> Iterator[None]:
    """Inside, work is shared among ``processes``, all of which have to come here.

    Args:
        processes: members of torch's default process group; ``ALONE`` to compute something that the
            others do not.
    """
    global _current
    before, _current = _current, processes
    try:
        yield
    finally:
        _current = before
