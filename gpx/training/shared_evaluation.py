"""Loss and gradient of a batch that several processes evaluate together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gpx.linalg.processes import ALONE, sharing, work_shared
from gpx.methods.base.batch import Batch

Evaluate = Callable[[Batch], tuple[Tensor, Mapping[str, Tensor]]]
"""Loss () and its parts of a batch; the gradients are in the parameters."""


def shared_evaluation(
    evaluate: Evaluate, parameters: Sequence[nn.Parameter], shared: str | None
) -> Evaluate:
    """``evaluate`` where every process takes a part of the batch: it gives their mean.

    Args:
        evaluate: of one process, which is all there is where nothing is shared.
        parameters: whose gradients it leaves.
        shared: what processes divide (``Objective.shared``). Where that is not the batch, the
            evidence itself is, and all go on with the loss and gradient of the first.
    """
    processes = sharing()
    if processes.count == 1:
        return evaluate

    def of_first(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss, parts = evaluate(batch)
        processes.broadcast([loss, *(p.grad for p in parameters if p.grad is not None)])
        return loss, parts

    if shared != "batch":
        return of_first

    def of_all(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        count = len(batch.x)
        mine = processes.part(count)
        with work_shared(ALONE):  # the rows are divided; what is done with them is not
            loss, parts = evaluate(batch.part(mine))
        found = [loss, *parts.values(), *(p.grad for p in parameters if p.grad is not None)]
        torch._foreach_mul_(found, (mine.stop - mine.start) / count)
        processes.all_sum(*found)
        return loss, parts

    return of_all
