"""Functions of tensors of fixed shapes, recorded once as a CUDA graph and replayed.

A small function is many kernels of a few microseconds each: launched one by one, a GPU waits for
the host most of the time. Recorded, they are one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.linalg.cholesky import checks_deferred

logger = logging.getLogger(__name__)

EAGER_STEPS = 3
"""Calls before a recording: libraries are loaded and have chosen their algorithms by then."""
MOST_FAILURES = 3
"""Replays in a row whose factorisation failed, after which recording is given up."""

Record = Callable[[Callable[[], None]], Callable[[], None]]


def recorded(body: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels of ``body`` as a CUDA graph; what comes back launches all of them.

    Raises:
        RuntimeError: an operation of ``body`` cannot be recorded (it waits, or copies from the
            host).
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    replay: Callable[[], None] = graph.replay
    return replay


class Replayed:
    """Calls a function of tensors, from a recording where it can.

    The first ``EAGER_STEPS`` of a kind (shapes of what comes in, ``places``) run as they are; then
    the function is recorded. A recorded factorisation cannot raise its jitter: it notes that it
    failed, the note is read after the replay, and such a call is made again as it is, which raises
    the jitter or says what is wrong. What a failed replay has left is never used.

    Whatever ``function`` does must be the same kernels on the same arrays at every call: no draws,
    no state that is replaced rather than changed in place.

    Args:
        function: of tensors; what it returns may hold arrays, which every replay fills anew.
        record: makes a recording; another one in tests.
        places: says what else a recording depends on; another answer needs a new one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        record: Record | None = recorded,
        places: Callable[[], object] = tuple,
    ) -> None:
        self.function, self.record, self.places = function, record, places
        self.given_up: str | None = "not asked for" if record is None else None
        self.replays = 0
        self._kind: Any = None
        self._eager, self._failures = 0, 0
        self._replay: Callable[[], None] | None = None
        self._inputs: tuple[Tensor, ...] | None = None
        self._found: tuple[Any, Tensor] | None = None

    def __call__(self, *given: Tensor) -> Any:
        """What the function returns; after a replay the arrays of the recording."""
        kind = tuple(tensor.shape for tensor in given), self.places()
        if kind != self._kind:
            self._kind, self._eager = kind, 0
            self._replay = self._inputs = self._found = None
        if self.given_up is None and self._replay is None and self._eager >= EAGER_STEPS:
            self._start(given)
        if self._replay is not None and self._replayed(given):
            assert self._found is not None
            return self._found[0]
        self._eager += 1
        return self.function(*given)

    def _start(self, given: tuple[Tensor, ...]) -> None:
        """Record the function, or say why not."""
        assert self.record is not None
        self._inputs = inputs = tuple(tensor.clone() for tensor in given)

        def body() -> None:
            with checks_deferred() as checks:
                found = self.function(*inputs)
            failed = [check.reshape(1) for check in checks]
            none = torch.zeros(1, dtype=torch.bool, device=inputs[0].device)
            self._found = found, torch.cat([none, *failed]).any()

        try:
            self._replay = self.record(body)
        except RuntimeError as error:
            self._give_up(f"the step cannot be recorded ({str(error).splitlines()[0]})")

    def _replayed(self, given: tuple[Tensor, ...]) -> bool:
        """Replay; False where a factorisation failed."""
        assert self._replay is not None
        assert self._inputs is not None
        for held, tensor in zip(self._inputs, given, strict=True):
            held.copy_(tensor)
        self._replay()
        assert self._found is not None
        if bool(self._found[1]):
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._give_up("its factorisations need jitter that a recording cannot choose")
            return False
        self._failures = 0
        self.replays += 1
        return True

    def _give_up(self, reason: str) -> None:
        self.given_up = reason
        self._replay = self._inputs = self._found = None
        logger.warning("no CUDA graph: %s; steps go on without", reason)
