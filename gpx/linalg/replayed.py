"""Functions of tensors of fixed shapes, recorded once as a CUDA graph and replayed.

A small function is many kernels of a few microseconds each. Launched one by one they leave the GPU
waiting for the host most of the time; recorded, they are one launch. For a GPU only: on a CPU the
functions run as they are.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpx.linalg.cholesky import checks_deferred

logger = logging.getLogger(__name__)

EAGER_STEPS = 3
"""Unrecorded calls before a recording: by then libraries are loaded and have chosen their
algorithms."""
MAX_FAILURES = 3
"""Recording is given up after this many replays in a row that failed a check."""

Record = Callable[[Callable[[], None]], Callable[[], None]]


def record_cuda_graph(body: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels of ``body`` on the current device as a CUDA graph; returns its launch.

    Raises:
        RuntimeError: an operation of ``body`` cannot be recorded (it waits, or copies from the
            host).
    """
    graph, stream = torch.cuda.CUDAGraph(), _recording_stream(torch.cuda.current_device())
    try:
        with warnings.catch_warnings(), torch.cuda.graph(graph, stream=stream):
            # of a body that refuses at once; the error says more
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            body()
    except RuntimeError:
        _end_recording(stream)
        raise
    replay: Callable[[], None] = graph.replay
    return replay


def _end_recording(stream: torch.cuda.Stream) -> None:
    """Make torch leave a recording that failed: its default generator on the device still counts
    as recorded, and would refuse all further draws, until a recording succeeds."""
    number = torch.zeros((), device=stream.device)
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        number.add_(1.0)


@lru_cache(maxsize=64)
def _recording_stream(device: int) -> torch.cuda.Stream:
    """One stream for all recordings on a device; torch's own is on whichever came first."""
    return torch.cuda.Stream(device)


def refuse_recording(why: str) -> None:
    """Raise RuntimeError while a CUDA graph is being recorded: for code it would not capture."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(why)


class KeepInputsAlive(TorchDispatchMode):
    """Keeps references to the arrays that operations use but did not create.

    A recording stores addresses: if the owner of a buffer replaces it afterwards, its memory must
    not be reused as long as replays write into it.
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
    """Whether iterative solves may be recorded, and which kinds could not be.

    Attributes:
        record: makes a recording (tests pass a stand-in); None: no solve is recorded.
        refused: kind of solve -> why the last one of its kind could not be recorded.
    """

    record: Record | None = record_cuda_graph
    refused: dict[Hashable, str] = field(default_factory=dict)


# for all threads: torch computes gradients of CUDA tensors in threads of its own
_recordings = Recordings()


def solve_recordings() -> Recordings:
    """The ``Recordings`` in force; by default solves on a GPU are recorded."""
    return _recordings


@contextmanager
def solves_recorded(record: Record | None = record_cuda_graph) -> Iterator[Recordings]:
    """Inside, iterative solves on a GPU are recorded by ``record``; None: not at all."""
    global _recordings
    before, _recordings = _recordings, Recordings(record)
    try:
        yield _recordings
    finally:
        _recordings = before


@dataclass
class _Recorded:
    """Arrays of a recording. References neither the recording nor the ``Replayed``: no cycle.

    Attributes:
        inputs: arrays that are filled before every replay.
        held: arrays that operations use but did not create.
        found: the function's result.
        failed: whether one of its factorisations failed (); None where it has none.
        before: ``changed()``, each with a copy made at the start of the last replay.
    """

    inputs: tuple[Tensor, ...]
    held: dict[int, Tensor] = field(default_factory=dict)
    found: Any = None
    failed: Tensor | None = None
    before: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Replayed:
    """Calls a function of tensors, replayed from a recording where possible.

    The first calls with given input shapes and a given ``depends_on()`` run unrecorded; then the
    function is recorded, on the device of the first input. A recorded factorisation cannot raise
    its jitter. It sets a flag instead, which is read after the replay; where it is set, the
    replay's results are discarded and the call is repeated unrecorded, which raises the jitter or
    reports the error.

    ``function`` must launch the same kernels on the same arrays at every call: no random draws, no
    state that is replaced rather than changed in place. A function without factorisations may
    change its own arrays, and its replays do not synchronise; one with factorisations only those
    of ``changed``, as its discarded replays must leave no trace.

    Args:
        function: of one tensor or more; every replay overwrites the arrays in its result.
        record: makes a recording (tests pass a stand-in); None: never recorded.
        depends_on: what else a recording depends on; when its value changes, a new one is made.
        eager: unrecorded calls before a recording.
        changed: arrays that the function changes; a discarded replay leaves them as they were.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        record: Record | None = record_cuda_graph,
        depends_on: Callable[[], object] = tuple,
        eager: int = EAGER_STEPS,
        changed: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.function, self.record, self.depends_on = function, record, depends_on
        self.changed = changed
        self.given_up: str | None = "not asked for" if record is None else None
        self.replays = 0
        self._kind: Any = None
        self._first, self._eager, self._failures = eager, 0, 0
        self._replay: Callable[[], None] | None = None
        self._recorded: _Recorded | None = None

    def __call__(self, *given: Tensor) -> Any:
        """The function's result; after a replay it is in the arrays of the recording."""
        kind = tuple(tensor.shape for tensor in given), self.depends_on()
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
        """Record the function, or note why it cannot be recorded."""
        assert self.record is not None
        made = _Recorded(tuple(tensor.clone() for tensor in given))
        try:
            with torch.cuda.device_of(given[0]):  # on another one nothing would be recorded
                self._replay = self.record(partial(_record, self.function, made, self.changed))
            self._recorded = made
        except RuntimeError as error:
            self._give_up(f"the step cannot be recorded ({str(error).splitlines()[0]})")

    def _replayed(self, given: tuple[Tensor, ...]) -> bool:
        """Replay the recording; False where a factorisation failed."""
        assert self._replay is not None
        assert self._recorded is not None
        for held, tensor in zip(self._recorded.inputs, given, strict=True):
            held.copy_(tensor)
        self._replay()
        if self._recorded.failed is not None and bool(self._recorded.failed):
            for array, values in self._recorded.before:
                array.copy_(values)
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self._give_up(
                    f"{MAX_FAILURES} steps in a row needed what a recording cannot do, such as to "
                    "raise a jitter"
                )
            return False
        self._failures = 0
        self.replays += 1
        return True

    def release(self) -> None:
        """Release the recording and its memory; the next call starts anew."""
        self._kind, self._eager = None, 0
        self._replay = self._recorded = None

    def _give_up(self, reason: str) -> None:
        self.release()
        self.given_up = reason
        logger.warning("no CUDA graph: %s; continuing without one", reason)


def _record(
    function: Callable[..., Any], made: _Recorded, changed: Callable[[], Sequence[Tensor]]
) -> None:
    """The body of a recording: calls the function on the recording's own inputs."""
    made.before = [(array, array.clone()) for array in changed()]
    with KeepInputsAlive() as held, checks_deferred() as checks:
        found = function(*made.inputs)
    made.held, made.found = held.arrays, found
    failed = [check.reshape(1) for check in checks]
    made.failed = torch.cat(failed).any() if failed else None
