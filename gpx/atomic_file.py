"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing for want of room, which do not say where."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends without an exception.

    What is written goes to a sibling, is flushed to disk and renamed over ``path``: a crash or kill
    at any moment leaves the old file or the new one. On an exception nothing is left.

    Args:
        path: target; its folder is made.

    Raises:
        OSError: the folder cannot be made or written to, or the disk is full; it names ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        error.filename = str(path)  # nobody has asked for the sibling
        raise
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)  # mkstemp makes files for its owner's eyes only
        os.replace(part, path)
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)
