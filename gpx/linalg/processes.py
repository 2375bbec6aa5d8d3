"""Work that several processes share: each computes a part, and all of them hold the result.

All processes run the same program on the same data with the same seeds, so that they take the same
decisions. What is costly asks ``sharing()`` for its part and puts the parts together; outside
``work_shared`` there is one process, and its part is the whole.
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
    """Those that share the work, seen from one of them.

    Attributes:
        number: of this one; the first, 0, writes files and speaks.
        count: how many there are.
    """

    number: int = 0
    count: int = 1

    def part(self, total: int) -> slice:
        """The entries of ``total`` that are this process's to compute; in order of the numbers.

        Parts differ by one entry at most, so that none is empty where there are enough entries.
        """
        first, behind = (total * number // self.count for number in (self.number, self.number + 1))
        return slice(first, behind)

    def add_up(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over the processes."""
        self._exchanged(tensors, dist.all_reduce)

    def put_together(self, part: Tensor, total: int) -> Tensor:
        """All rows (total, ...) from those of ``part(total)`` that each process has."""
        if self.count == 1:
            return part
        step = -(-total // self.count)
        padded = part.new_zeros(step, *part.shape[1:])
        padded[: len(part)] = part
        found = part.new_empty(step * self.count, *part.shape[1:])
        with _in_touch():
            gather(found, padded)
        if total % self.count == 0:
            return found
        sizes = [total * (k + 1) // self.count - total * k // self.count for k in range(self.count)]
        pieces = zip(found.split(step), sizes, strict=True)
        return torch.cat([piece[:size] for piece, size in pieces])

    def agreed(self, *values: float) -> list[float]:
        """The largest of each over the processes; waits for all of them, but for no device."""
        if self.count == 1:
            return list(values)
        message = torch.tensor(values, dtype=torch.float64)
        with _in_touch():
            dist.all_reduce(message, op=dist.ReduceOp.MAX)
        return message.tolist()

    def from_first(self, values: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process, so that rounding parts no ways."""
        self._exchanged(values, lambda message: dist.broadcast(message, src=0))

    def _exchanged(self, tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
        """Fill tensors with what ``send`` makes of them: one message for each dtype."""
        if self.count == 1:
            return
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            message = torch.cat([tensor.reshape(-1) for tensor in alike])
            with _in_touch():
                send(message)
            pieces = message.split([tensor.numel() for tensor in alike])
            for tensor, piece in zip(alike, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))


@contextmanager
def _in_touch() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        raise ProcessLost(
            f"processes that share this run have lost one another, which is so when one has ended: "
            f"see what the others say ({why})"
        ) from error


def gather(found: Tensor, part: Tensor) -> None:
    """All processes' parts, equally large, one behind the other."""
    # torch 2.13 gave it another name; a torch built without torch.distributed has neither
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(found, part)


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
