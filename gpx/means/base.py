"""Base class of mean functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

from torch import Tensor

from gpx.constructed import Constructed
from gpx.errors import ShapeError, class_name


class Mean(Constructed, ABC):
    """A prior mean function m(x), called as ``mean(x)``.

    A subclass writes ``forward``, (n, d) -> (n,). Calling the mean raises ShapeError for a result
    of another shape: (n, 1) would be broadcast against targets (n,) to a matrix.
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Prior mean at each row: (n, d) -> (n,)."""

    def __call__(self, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        """``forward``, with a check of the shape of its result."""
        found = cast(Tensor, super().__call__(x, *rest, **options))
        if found.shape != x.shape[:1]:
            column = found.ndim == 2 and found.shape[1] == 1
            raise ShapeError(
                f"{class_name(self)} gave a tensor of shape {tuple(found.shape)} for inputs of "
                f"shape {tuple(x.shape)}: a mean function gives one value a row, (n,)"
                + ("; return found.squeeze(1)" if column else "")
            )
        return found
