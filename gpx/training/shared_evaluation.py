"""Loss and gradient of a batch, computed by several processes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gpx.linalg.processes import ALONE, sharing, work_shared
from gpx.methods.base.batch import Batch

Evaluate = Callable[[Batch], tuple[Tensor, Mapping[str, Tensor]]]
"""Returns loss () and parts of a batch and leaves gradients in the parameters."""


def shared_evaluation(
    evaluate: Evaluate, parameters: Sequence[nn.Parameter], shared: str | None
) -> Evaluate:
    """``evaluate`` with the work divided among the processes; with one process, ``evaluate``.

    Args:
        evaluate: loss of a batch in one process.
        parameters: whose gradients it sets.
        shared: what processes divide (``Objective.shared``). For "batch" each evaluates a part of
            its rows and results are averaged. Otherwise the evidence divides its own work, and all
            processes continue with loss and gradient of the first, so that rounding cannot differ.
    """
    processes = sharing()
    if processes.count == 1:
        return evaluate

    def from_first(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss, parts = evaluate(batch)
        processes.broadcast([loss, *(p.grad for p in parameters if p.grad is not None)])
        return loss, parts

    if shared != "batch":
        return from_first

    def averaged(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        count = len(batch.x)
        mine = processes.part(count)
        with work_shared(ALONE):  # only the rows are divided among processes
            loss, parts = evaluate(batch.part(mine))
        found = [loss, *parts.values(), *(p.grad for p in parameters if p.grad is not None)]
        torch._foreach_mul_(found, (mine.stop - mine.start) / count)
        processes.all_sum(*found)
        return loss, parts

    return averaged
