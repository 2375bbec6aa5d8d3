"""Evaluations of a loss, recorded so that a search whose state is hidden can be resumed exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Evaluation = tuple[float, float, Tensor]
"""Checksum of the point, loss, gradient (P,) float64: one call of the objective."""


@dataclass
class Record:
    """What a fresh search is given again, to walk the same path: all that the loss has answered.

    Attributes:
        start (P,): point where the search began, float64; None before.
        evaluations: since then, in their order.
        restarts: counts of evaluations at which the search began again from its best point.
        dropped: evaluations before ``start``, which were too many to be kept.
        lowest_dropped: lowest loss of these.
        bounded: whether the search was within limits of the parameters already at ``start``.
    """

    start: Tensor | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    dropped: int = 0
    lowest_dropped: float = math.inf
    bounded: bool = False

    @property
    def count(self) -> int:
        """Evaluations since the search began, dropped ones included."""
        return self.dropped + len(self.evaluations)

    @property
    def lowest(self) -> float:
        """Lowest loss since the search began; infinite when there is none."""
        return min((self.lowest_dropped, *(value for _, value, _ in self.evaluations)))

    def begin_at(self, point: np.ndarray, bounded: bool) -> None:
        """Drop all evaluations and go on from ``point`` (P,), the best one."""
        self.lowest_dropped, self.dropped = self.lowest, self.count
        self.start, self.evaluations, self.bounded = torch.from_numpy(point.copy()), [], bounded

    def state_dict(self) -> dict[str, Any]:
        """The start and the evaluations, (P + 2) float64 numbers each."""
        if self.start is None:
            return {"start": None}
        state: dict[str, Any] = {
            "start": self.start,
            "dropped": self.dropped,
            "lowest_dropped": self.lowest_dropped,
            "bounded": self.bounded,
            "restarts": torch.tensor(self.restarts, dtype=torch.int64),
        }
        if self.evaluations:
            checksums, values, gradients = zip(*self.evaluations, strict=True)
            state["checksums"] = torch.tensor(checksums, dtype=torch.float64)
            state["values"] = torch.tensor(values, dtype=torch.float64)
            state["gradients"] = torch.stack(gradients)
        return state

    @classmethod
    def of(cls, state: dict[str, Any]) -> Record:
        """The record whose ``state_dict`` it is; older ones lack what was not known then."""
        if state["start"] is None:
            return cls()
        columns = [state[name].to("cpu") for name in ("checksums", "values") if name in state]
        gradients = state["gradients"].to("cpu").unbind(0) if columns else ()
        return cls(
            state["start"].to("cpu"),
            list(zip(*(column.tolist() for column in columns), gradients, strict=True)),
            state["restarts"].tolist() if "restarts" in state else [],
            state.get("dropped", 0),
            state.get("lowest_dropped", math.inf),
            state.get("bounded", False),
        )
