"""Small artificial tables for runs on classes or on two targets."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CLASSES = ("data=npz", "data.path=@classes")
TWO_TARGETS = ("data=npz", "data.path=@two_targets")
"""Options of such a run; ``with_tables`` replaces @name by the path of a file."""
ROWS, INPUTS = 300, 4


@contextlib.contextmanager
def with_tables(options: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The options with paths of temporary files."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(ROWS, INPUTS))
    smooth = np.stack([np.sin(2.0 * x[:, 0]) + x[:, 1], np.cos(x[:, 2])], 1)
    noisy = smooth + 0.1 * draws.normal(size=smooth.shape)
    targets = {"classes": (noisy[:, 0] > 0.0).astype(int), "two_targets": noisy}
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for option in options:
            name, _, table = option.partition("@")
            if table:
                path = Path(folder) / f"{table}.npz"
                np.savez(path, x=x, y=targets[table])
                option = f"{name}{path}"
            found.append(option)
        yield tuple(found)
