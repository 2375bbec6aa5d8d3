"""Files of rows that several processes of a script add to at the same time.

Rows are measured first. Then, under the lock of the folder, the file is read again, the new rows
are merged with those of other processes, and the file is replaced as a whole, so that a process
that is stopped leaves the old file or the new one. Scripts import this file as described in
``record``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpx.atomic_file import write_atomically

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]
Key = Callable[[Row], Hashable]
"""What identifies a row."""

_locked: set[Path] = set()
"""Folders that this process has locked."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process has locked the folder; blocks of one process may be nested."""
    folder = folder.resolve()
    if fcntl is None or folder in _locked:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        _locked.add(folder)
        yield
    finally:
        _locked.discard(folder)
        os.close(handle)  # ends the lock


def merged(rows: Sequence[Row], new: Sequence[Row], key: Key) -> list[Row]:
    """The rows, without those that have the key of a new one, and then the new ones."""
    replaced = set(map(key, new))
    return [*(row for row in rows if key(row) not in replaced), *new]


def read_lines(path: Path) -> list[Row]:
    """Rows of a file with a line of JSON for each; [] if there is no file.

    A last line that was cut off, because the process that wrote it was stopped, is left out.
    """
    text = path.read_text() if path.exists() else ""
    whole, _, last = text.rpartition("\n")
    rows = [json.loads(line) for line in whole.splitlines() if line]
    with contextlib.suppress(json.JSONDecodeError):
        rows += [json.loads(last)] if last else []
    return rows


def add_line(path: Path, row: Row, key: Key) -> list[Row]:
    """Add a row to such a file, where it replaces one with the same key; returns all rows."""
    with locked(path.parent):
        rows = merged(read_lines(path), [row], key)
        write_atomically(path, "".join(json.dumps(each) + "\n" for each in rows))
    return rows
