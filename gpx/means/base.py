"""Base class of mean functions."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from gpx.constructed import Constructed


class Mean(Constructed, ABC):
    """A prior mean function m(x), called as ``mean(x)``."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Prior mean at each row: (n, d) -> (n,)."""
