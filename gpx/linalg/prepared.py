"""A cache of results computed from tensors, looked up by identity and never by value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """One number per tensor that grows when it is written to; 0 for those made in inference mode,
    whose changes torch does not count."""
    return [0 if t.is_inference() else t._version for t in tensors]


class Prepared:
    """Results computed from tensors, kept until those tensors change.

    ``linear_operator`` rebuilds an operator several times per call, so nothing stored on the
    operator itself survives. A ``Prepared`` travels with it as a plain keyword instead, and hands
    out a stored result only for the very same memory in the very same state (address, version
    counter, shape, strides, dtype): an in-place change, an index into the batch or a copy makes it
    compute again. No value is ever compared, so there is no host synchronisation.

    One result is kept per name: two operators that share a ``Prepared`` but not their tensors
    replace each other's. Results carry no gradient. Tensors without a storage of their own (sparse
    ones) and those made in inference mode cannot be recognised, so theirs are computed every time.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, tuple[Tensor, ...], Any]] = {}

    def get(self, name: str, sources: Sequence[Tensor], build: Callable[[], T]) -> T:
        """``build()``, or its stored result if it was last called for these ``sources``."""
        # no version counter, or no address
        if any(t.is_inference() or t.layout != torch.strided for t in sources):
            return build()
        key = [(t.data_ptr(), t._version, t.shape, t.stride(), t.dtype, t.device) for t in sources]
        found = self._kept.get(name)
        if found is not None and found[0] == key:
            return found[2]
        # a result made in inference mode could not be used by a later call with gradients
        with torch.inference_mode(False), torch.no_grad():
            value = build()
        # the sources are kept alive, so that their addresses cannot be reused by other tensors
        self._kept[name] = (key, tuple(t.detach() for t in sources), value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        """Addresses mean nothing in another process: copies and pickles start empty."""
        return {"_kept": {}}
