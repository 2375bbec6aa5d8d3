"""Functions of tensors of fixed shapes, recorded once as a CUDA graph and replayed.

A small function is many kernels of a few microseconds each: launched one by one, a GPU waits for
the host most of the time. Recorded, they are one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


def refuse_recording(why: str) -> None:
    """Raise RuntimeError while a CUDA graph is recorded: what follows would not be in it."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(why)


class Held(TorchDispatchMode):
    """Holds the arrays that operations read or write and did not make.

    A recording knows addresses: a buffer that its owner replaces afterwards must not be given to
    somebody else as long as replays write into it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[int, Tensor] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for tensor in _strided((args, kwargs)):
            place = tensor.untyped_storage().data_ptr()
            if place not in self._made:
                self.arrays.setdefault(place, tensor.detach())
        found = function(*args, **(kwargs or {}))
        places = {tensor.untyped_storage().data_ptr() for tensor in _strided(found)}
        self._made |= places - self.arrays.keys()
        return found


def _strided(values: Any) -> list[Tensor]:
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.layout == torch.strided]


@dataclass
class Recordings:
    """Whether iterative solves may be recorded, and which have turned out not to be.

    Attributes:
        record: makes a recording; another one in tests, None for none.
        refused: kind of solve -> why the last one of its kind could not be recorded.
    """

    record: Record | None = recorded
    refused: dict[Hashable, str] = field(default_factory=dict)


_anywhere = Recordings()
_recordings: ContextVar[Recordings | None] = ContextVar("recordings", default=None)


def solve_recordings() -> Recordings:
    """Those that hold here: solves on a GPU are recorded where nobody has said otherwise."""
    return _recordings.get() or _anywhere


@contextmanager
def solves_recorded(record: Record | None = recorded) -> Iterator[Recordings]:
    """Inside, iterative solves on a GPU are recorded by ``record``; None: not at all."""
    recordings = Recordings(record)
    token = _recordings.set(recordings)
    try:
        yield recordings
    finally:
        _recordings.reset(token)


@dataclass
class _Recorded:
    """What a recording works on: it must hold neither the recording nor who replays it.

    Attributes:
        inputs: arrays that are filled before every replay.
        held: arrays that operations read or write and did not make.
        found: what the function returned.
        failed: whether a factorisation in it failed (); None where it has none.
    """

    inputs: tuple[Tensor, ...]
    held: dict[int, Tensor] = field(default_factory=dict)
    found: Any = None
    failed: Tensor | None = None


class Replayed:
    """Calls a function of tensors, from a recording where it can.

    The first ``EAGER_STEPS`` of a kind (shapes of what comes in, ``places``) run as they are; then
    the function is recorded. A recorded factorisation cannot raise its jitter: it notes that it
    failed, the note is read after the replay, and such a call is made again as it is, which raises
    the jitter or says what is wrong. What a failed replay has left is never used.

    Whatever ``function`` does must be the same kernels on the same arrays at every call: no draws,
    no state that is replaced rather than changed in place. One that makes no factorisation may
    change arrays of its own, and its replays wait for nothing.

    Args:
        function: of tensors; what it returns may hold arrays, which every replay fills anew.
        record: makes a recording; another one in tests.
        places: says what else a recording depends on; another answer needs a new one.
        eager: calls before a recording.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        record: Record | None = recorded,
        places: Callable[[], object] = tuple,
        eager: int = EAGER_STEPS,
    ) -> None:
        self.function, self.record, self.places = function, record, places
        self.given_up: str | None = "not asked for" if record is None else None
        self.replays = 0
        self._kind: Any = None
        self._first, self._eager, self._failures = eager, 0, 0
        self._replay: Callable[[], None] | None = None
        self._recorded: _Recorded | None = None

    def __call__(self, *given: Tensor) -> Any:
        """What the function returns; after a replay the arrays of the recording."""
        kind = tuple(tensor.shape for tensor in given), self.places()
        if kind != self._kind:
            self.release()
            self._kind = kind
        if self.given_up is None and self._replay is None and self._eager >= self._first:
            self._start(given)
        if self._replay is not None and self._replayed(given):
            assert self._recorded is not None
            return self._recorded.found
        self._eager += 1
        return self.function(*given)

    def _start(self, given: tuple[Tensor, ...]) -> None:
        """Record the function, or say why not."""
        assert self.record is not None
        made = _Recorded(tuple(tensor.clone() for tensor in given))
        try:
            self._replay = self.record(partial(_record, self.function, made))
            self._recorded = made
        except RuntimeError as error:
            self._give_up(f"the step cannot be recorded ({str(error).splitlines()[0]})")

    def _replayed(self, given: tuple[Tensor, ...]) -> bool:
        """Replay; False where a factorisation failed."""
        assert self._replay is not None
        assert self._recorded is not None
        for held, tensor in zip(self._recorded.inputs, given, strict=True):
            held.copy_(tensor)
        self._replay()
        if self._recorded.failed is not None and bool(self._recorded.failed):
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._give_up("its factorisations need jitter that a recording cannot choose")
            return False
        self._failures = 0
        self.replays += 1
        return True

    def release(self) -> None:
        """Let go of the recording and the memory that it holds; the next call starts anew."""
        self._kind, self._eager = None, 0
        self._replay = self._recorded = None

    def _give_up(self, reason: str) -> None:
        self.release()
        self.given_up = reason
        logger.warning("no CUDA graph: %s; steps go on without", reason)


def _record(function: Callable[..., Any], made: _Recorded) -> None:
    """The body of a recording: the function from the recording's own inputs."""
    with Held() as held, checks_deferred() as checks:
        found = function(*made.inputs)
    made.held, made.found = held.arrays, found
    failed = [check.reshape(1) for check in checks]
    made.failed = torch.cat(failed).any() if failed else None
