"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, which do not name the file."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends without an exception.

    Data are written to a temporary file in the same folder, flushed to disk and renamed to
    ``path``: after a crash at any moment there is the old file or the new one. On an exception
    the temporary file is deleted.

    Args:
        path: target; its folder is created.

    Raises:
        OSError: the folder cannot be created or written to, or the disk is full; names ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # with permissions as the umask gives them, unlike files of tempfile
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        opened = part.open("xb")
    except OSError as error:
        error.filename = str(path)  # instead of the temporary file
        raise
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Write a whole file, texts in UTF-8; as ``atomic_file``."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
