"""Progress on a terminal (a bar) or in a pipe (plain lines, the first one at once)."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

from gpx.methods.base.model import Model
from gpx.training.progress import Progress


def warnings_as_lines() -> None:
    """Show warnings of this process as "warning: ..." without Python's source line."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        print(f"warning: {text}", file=sys.stderr if file is None else file, flush=True)

    warnings.showwarning = show


def print_error(error: object) -> None:
    """Print "error: ..." on one line; unprintable characters (of names in files) become "?"."""
    text = " ".join(str(error).split())
    shown = "".join(c if c.isprintable() else "?" for c in text)
    print(f"error: {shown}", file=sys.stderr)


class Console:
    """Monitor that prints progress.

    Args:
        seconds: shortest time between plain lines (a bar refreshes itself).
        stream: to write to; default standard error.
        quiet: write nothing.
    """

    def __init__(
        self, seconds: float = 5.0, stream: TextIO | None = None, *, quiet: bool = False
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._interactive = self._stream.isatty()
        self._seconds = seconds
        self._last_line = -float("inf")
        self._bar: tqdm | None = None
        self._silent = quiet

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        if self._silent:
            return
        with self._silent_if_closed():
            if self._bar is not None:
                self._bar.write(text, file=self._stream)
            else:
                print(text, file=self._stream, flush=True)

    @contextmanager
    def _silent_if_closed(self) -> Iterator[None]:
        """A closed terminal or pipe silences the console; it does not end the run."""
        try:
            yield
        except OSError:
            self._silent = True
            if self._bar is not None:
                self._bar.disable = True  # it would write once more when it is deleted
                self._bar = None

    def progress(self, progress: Progress, model: Model) -> None:
        """Monitor interface."""
        if self._silent:
            return
        if self._interactive:
            with self._silent_if_closed():
                self._advance(progress)
            return
        now = time.monotonic()
        last = progress.step >= progress.max_steps
        if now - self._last_line >= self._seconds or last:
            self._last_line = now
            self.say(
                f"step {progress.step}/{progress.max_steps}"
                f"  evidence/point {_short(progress.evidence_per_point, sign=True)}"
                f"  {1e3 * progress.seconds_per_step:.0f} ms/step  {progress.seconds:.0f} s"
            )

    def _advance(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=progress.max_steps,
                initial=progress.step,
                file=self._stream,
                unit="step",
                dynamic_ncols=True,
            )
        self._bar.set_postfix_str(
            f"evidence/point {_short(progress.evidence_per_point, sign=True)}"
        )
        self._bar.update(progress.step - self._bar.n)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Monitor interface."""
        names = CLASS_METRICS if "accuracy" in metrics else NUMBER_METRICS
        shown = "  ".join(f"{name} {_short(metrics[name])}" for name in names if name in metrics)
        self.say(f"step {step}  test: {shown}")

    def close(self) -> None:
        """Finish the bar."""
        with self._silent_if_closed():
            if self._bar is not None:
                self._bar.close()
                self._bar = None


LARGE = 1e6
"""Numbers at least this large are printed with a power of ten."""


def _short(value: float, *, sign: bool = False) -> str:
    """Four decimals, or four digits of a large number."""
    return f"{value:{'+' if sign else ''}{'.4f' if abs(value) < LARGE else '.4g'}}"


NUMBER_METRICS, CLASS_METRICS = ("rmse", "mnlp", "coverage_95"), ("accuracy", "mnlp")
"""Test metrics that are printed during training."""
