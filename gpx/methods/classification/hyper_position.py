"""Hyperparameters as one vector with a normal prior, for Markov chains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from gpx.constraints import MARGIN, Positive, positive_parameters


class HyperPosition:
    """The parameters of some modules as a vector u (k,): logarithms of positive ones.

    Args:
        modules: kernel and mean function.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.entries: list[tuple[nn.Parameter, Positive | None]] = []
        for module in modules:
            known = {id(c.raw): c.constraint for c in positive_parameters(module)}
            self.entries += [(p, known.get(id(p))) for p in module.parameters()]

    @property
    def size(self) -> int:
        """k."""
        return sum(parameter.numel() for parameter, _ in self.entries)

    def read(self) -> Tensor:
        """u (k,), float64, where the modules stand."""
        parts = [
            (raw if constraint is None else constraint(raw).log()).detach().double().reshape(-1)
            for raw, constraint in self.entries
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _pieces(
        self, position: Tensor
    ) -> Iterator[tuple[tuple[nn.Parameter, Positive | None], Tensor]]:
        sizes = [parameter.numel() for parameter, _ in self.entries]
        return zip(self.entries, position.split(sizes), strict=True)

    @torch.no_grad()
    def move(self, position: Tensor) -> None:
        """Put the modules at u (k,), which ``allows`` must have passed."""
        for (raw, constraint), part in self._pieces(position):
            made = part if constraint is None else constraint.right_inverse(part.exp())
            raw.copy_(made.view(raw.shape))

    def allows(self, position: Tensor) -> bool:
        """Whether u (k,) is finite and every positive parameter above its floor."""
        for (_, constraint), part in self._pieces(position):
            least = -math.inf
            if constraint is not None and constraint.floor > 0.0:
                least = math.log((1.0 + MARGIN) * constraint.floor)
            # beyond 50 a positive number has left every scale that data can have
            if not bool(((part > least) & (part.abs() < 50.0)).all()):
                return False
        return True
