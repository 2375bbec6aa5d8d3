"""Recorded evaluations of a loss, by which SciPy's L-BFGS-B is resumed exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Evaluation = tuple[float, float, Tensor]
"""One call of the objective: checksum of the point, loss, and gradient (P,) in float64."""


@dataclass
class Record:
    """All losses and gradients of a search, so that a fresh search can be taken along its path.

    Attributes:
        start (P,): point where the search began, float64; None before it has begun.
        evaluations: those since ``start``, in order.
        restarts: numbers of evaluations after which the search restarted from its best point.
        dropped: how many evaluations before ``start`` were dropped to bound the memory.
        lowest_dropped: lowest loss among the dropped evaluations.
        bounded: whether the search at ``start`` already respected limits of the parameters.
    """

    start: Tensor | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    dropped: int = 0
    lowest_dropped: float = math.inf
    bounded: bool = False

    @property
    def count(self) -> int:
        """Number of evaluations since the search began, including dropped ones."""
        return self.dropped + len(self.evaluations)

    @property
    def lowest(self) -> float:
        """Lowest loss since the search began; infinite before the first."""
        return min((self.lowest_dropped, *(value for _, value, _ in self.evaluations)))

    def begin_at(self, point: np.ndarray, bounded: bool) -> None:
        """Drop all evaluations and continue from the best point (P,)."""
        self.lowest_dropped, self.dropped = self.lowest, self.count
        self.start, self.evaluations, self.bounded = torch.from_numpy(point.copy()), [], bounded

    def state_dict(self) -> dict[str, Any]:
        """The start and the evaluations, of P + 2 float64 numbers each."""
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
        """The record of a ``state_dict``; entries that older versions did not save are optional."""
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
