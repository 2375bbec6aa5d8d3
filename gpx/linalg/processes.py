"""Work shared by several processes: each computes a part, and all of them hold the result.

All processes run the same program on the same data with the same seeds, so that they take the same
decisions. A costly computation asks ``sharing()`` for its part and combines the parts; outside
``work_shared`` there is one process, whose part is the whole. For several processes only: one takes
the first branch of each function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gpx.errors import ProcessLost


@dataclass(frozen=True)
class Processes:
    """The processes that share the work, seen from one of them.

    Attributes:
        number: rank of this process; process 0 writes files and messages.
        count: number of processes.
    """

    number: int = 0
    count: int = 1

    def part(self, total: int) -> slice:
        """The entries out of ``total`` that this process computes; parts differ by one at most."""
        return slice(total * self.number // self.count, total * (self.number + 1) // self.count)

    def all_sum(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over the processes."""
        self._exchanged(tensors, dist.all_reduce)

    def all_gather(self, part: Tensor, total: int) -> Tensor:
        """All rows (total, ...) from the rows ``part(total)`` of each process."""
        if self.count == 1:
            return part
        step = -(-total // self.count)
        padded = part.new_zeros(step, *part.shape[1:])
        padded[: len(part)] = part
        found = part.new_empty(step * self.count, *part.shape[1:])
        with _explain_lost_process():
            gather(found, padded)
        if total % self.count == 0:
            return found
        sizes = [total * (k + 1) // self.count - total * k // self.count for k in range(self.count)]
        pieces = zip(found.split(step), sizes, strict=True)
        return torch.cat([piece[:size] for piece, size in pieces])

    def all_max(self, *values: float) -> list[float]:
        """The largest of each over the processes; waits for the processes, not for a device."""
        if self.count == 1:
            return list(values)
        message = torch.tensor(values, dtype=torch.float64)
        with _explain_lost_process():
            dist.all_reduce(message, op=dist.ReduceOp.MAX)
        return message.tolist()

    def broadcast(self, values: Sequence[Tensor]) -> None:
        """Replace tensors by those of process 0, so that rounding makes no process differ."""
        self._exchanged(values, lambda message: dist.broadcast(message, src=0))

    def _exchanged(self, tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
        """Apply a collective operation to tensors: one message per dtype and device."""
        if self.count == 1:
            return
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            message = torch.cat([tensor.reshape(-1) for tensor in alike])
            with _explain_lost_process():
                send(message)
            pieces = message.split([tensor.numel() for tensor in alike])
            for tensor, piece in zip(alike, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))


@contextmanager
def _explain_lost_process() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        raise ProcessLost(
            f"processes that share this run have lost one another, as when one of them has ended: "
            f"see the messages of the others ({why})"
        ) from error


def gather(found: Tensor, part: Tensor) -> None:
    """Fill ``found`` with all processes' parts, equally large, in their order."""
    # torch 2.13 gave it another name; a torch built without torch.distributed has neither
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(found, part)


ALONE = Processes()
_current = ALONE


def sharing() -> Processes:
    """The processes among which work is shared at this moment."""
    return _current


@contextmanager
def work_shared(processes: Processes) -> Iterator[None]:
    """Inside, work is shared among ``processes``, all of which must enter.

    Args:
        processes: members of torch's default process group; ``ALONE`` for a computation that the
            others do not take part in.
    """
    global _current
    before, _current = _current, processes
    try:
        yield
    finally:
        _current = before
