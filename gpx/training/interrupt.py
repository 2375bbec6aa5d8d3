"""Ctrl-C, ``kill`` and a closed terminal end a run at the next step, after a checkpoint.

Outside of training there is no step to wait for: they end it at once, in words.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""What asks a run to stop; Windows knows no SIGHUP."""


class Interrupted(Exception):
    """The run was asked to stop and its checkpoint is written.

    Attributes:
        signal_number: the signal received (SIGINT, SIGTERM or SIGHUP).
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class StoppedAtOnce(KeyboardInterrupt):
    """The run was asked to stop where there is no step to end, and no checkpoint was written.

    A KeyboardInterrupt, so that all that tidies up after Ctrl-C does so after the others, too.

    Attributes:
        signal_number: the signal received (SIGTERM or SIGHUP).
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextmanager
def signals_raised() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise StoppedAtOnce, as Ctrl-C raises KeyboardInterrupt.

    Left to themselves they end the process without a word. An ``InterruptGuard`` inside takes
    precedence until it is left. What the process ignores stays ignored, and other threads than the
    main one catch nothing, as there.
    """
    previous: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedAtOnce(number)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != signal.SIGINT and signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class InterruptGuard:
    """While active, SIGINT, SIGTERM and SIGHUP set ``received`` and do nothing else.

    A signal that the process ignores stays ignored: ``nohup`` means to outlive its terminal.

    A second SIGINT raises KeyboardInterrupt as usual, for a step that takes too long. Signals can
    only be caught in the main thread; elsewhere (a thread of a launcher) the guard does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
