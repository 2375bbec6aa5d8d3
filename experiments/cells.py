"""Cells of a table, each saved when it is done, so that a stopped script can go on.

Scripts import this file as described in ``record``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from record import COMMIT, Rows
from row_files import add_line, merged, read_lines


class Cells:
    """A file with a line of JSON for every cell; several processes may add cells at a time.

    Args:
        path: of the file. None: nothing is read or written, as with --quick, whose short runs must
            not be taken for full ones later.
        key: names of the values that identify a cell.
        defaults: values of keys that older cells lack.
    """

    def __init__(self, path: Path | None, *key: str, **defaults: Any) -> None:
        self.path, self.key, self.defaults = path, key, defaults
        self.rows: Rows = [] if path is None else read_lines(path)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return any(self.key_of(row) == key for row in self.rows)

    def key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """The values that identify a cell."""
        return tuple(row.get(name, self.defaults.get(name)) for name in self.key)

    def add(self, row: dict[str, Any]) -> None:
        """Save a cell measured by this process; it replaces one with the same key."""
        row = {**row, "commit": row.get("commit", COMMIT)}
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        if self.path is None:
            self.rows = merged(self.rows, [row], self.key_of)
        else:  # with the cells of other processes
            self.rows = add_line(self.path, row, self.key_of)


def measured_apart(script: str, cell: tuple[str, ...], longest: float) -> dict[str, Any] | None:
    """The cell that ``script --cell ...`` prints in a process of its own, as its last line.

    None, and a line that says why, if it fails or takes longer than ``longest`` seconds.
    """
    command = [sys.executable, script, "--cell", *cell]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=longest, check=False)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(cell)}: not done in {longest} s", flush=True)
        return None
    if done.returncode:
        print(*cell, done.stderr.strip().splitlines()[-1:], flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
