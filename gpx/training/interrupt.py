"""Signals (Ctrl-C, ``kill``, a closed terminal) end training after a checkpoint.

Outside of training they end the run at once, with a message.
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
"""Signals that ask a run to stop; Windows has no SIGHUP."""


class Interrupted(Exception):
    """The run was asked to stop and its checkpoint is written.

    Attributes:
        signal_number: the signal received (SIGINT, SIGTERM or SIGHUP).
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class StoppedAtOnce(KeyboardInterrupt):
    """The run was stopped by SIGTERM or SIGHUP outside of training, without a checkpoint.

    It is a KeyboardInterrupt so that whatever cleans up after Ctrl-C also does so here.

    Attributes:
        signal_number: the signal received (SIGTERM or SIGHUP).
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextmanager
def signals_raised() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise StoppedAtOnce, as Ctrl-C raises KeyboardInterrupt.

    By default these signals end the process without a message. An ``InterruptGuard`` inside takes
    precedence while it is active. Signals that the process ignores stay ignored, handlers that were
    not installed from Python stay, and outside the main thread nothing is changed.
    """
    previous: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedAtOnce(number)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != signal.SIGINT and signal.getsignal(number) not in (signal.SIG_IGN, None):
                previous[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class InterruptGuard:
    """While active, SIGINT, SIGTERM and SIGHUP set ``received`` and do nothing else.

    A signal that the process ignores stays ignored, as SIGHUP under ``nohup``, and a handler that
    was not installed from Python stays, as it could not be restored. A second SIGINT
    raises KeyboardInterrupt, for a step that takes too long. Signals can only be caught in the main
    thread; in another one (of a launcher) the guard does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler is None or (number != signal.SIGINT and handler is signal.SIG_IGN):
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
