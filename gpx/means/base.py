"""Base class of mean functions."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpx.constructed import Constructed
from gpx.errors import ShapeError, class_name


class Mean(Constructed, ABC):
    """A prior mean function m(x), called as ``mean(x)``.

    A subclass writes ``forward``, (n, d) -> (n,). Calling it raises ShapeError for a result of
    another shape: (n, 1) would be broadcast against targets (n,) to a matrix.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # not in those classes alone that write it: a parent that is no mean may give it
        writer = next(base for base in cls.__mro__ if "forward" in vars(base))
        if writer is cls or not issubclass(writer, Mean):
            cls.forward = _one_value_a_row(cls.forward)  # type: ignore[method-assign]

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Prior mean at each row: (n, d) -> (n,)."""


def _one_value_a_row(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``forward`` of a subclass, with a check of the shape of its result."""

    @functools.wraps(forward)
    def checked(self: Mean, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        found = forward(self, x, *rest, **options)
        if found.shape != x.shape[:1]:
            column = found.ndim == 2 and found.shape[1] == 1
            raise ShapeError(
                f"{class_name(self)} gave a tensor of shape {tuple(found.shape)} for inputs of "
                f"shape {tuple(x.shape)}: a mean function gives one value a row, (n,)"
                + ("; return found.squeeze(1)" if column else "")
            )
        return found

    return checked
