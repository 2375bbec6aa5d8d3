"""Checkpoints: one file, written atomically, read without executing anything in it."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gpx.atomic_file import atomic_file
from gpx.errors import CheckpointError

FORMAT = "gpx-checkpoint-1"
"""Stored in every checkpoint; a file without it was not written by gpx."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` to ``path``. A process killed meanwhile leaves the old or the new file whole.

    Args:
        path: file to write.
        state: tensors, numbers, strings, and dicts and lists of these; nothing else.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    with atomic_file(path) as file, _checksums():
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:
            # on a full disk torch's archive writer fails an assertion; raise the error behind it
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_checkpoint(
    path: Path, device: torch.device | str = "cpu", *, mapped: bool = False
) -> dict[str, Any]:
    """Read a checkpoint.

    It is loaded with ``weights_only=True``: a malicious file cannot execute code.

    Args:
        path: file to read; it is not changed.
        device: where its tensors go.
        mapped: map tensors from the file instead of reading them, and skip their checksums. For
            callers that need little more than the other entries.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or not written by gpx.

    Cost: the file is read twice: torch does not compare checksums, so that is done first.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        damaged = None if mapped else _damaged_part(path)
        with warnings.catch_warnings():  # torch warns about other pickles before it refuses them
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location=device, weights_only=True, mmap=mapped)
    except Exception as error:  # the unpickler can raise anything on arbitrary bytes
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint: it is truncated or was not written by gpx "
            "(nothing was changed; restore the file, or start a new run)"
        ) from error
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: its part {damaged} differs from its checksum (nothing was "
            "changed; restore the file, or start a new run)"
        )
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(
            f"{path} is not a gpx checkpoint (found format {found!r}, expected {FORMAT!r}; "
            "nothing was changed)"
        )
    return state


@contextmanager
def _checksums() -> Iterator[None]:
    """Inside, torch writes checksums even where they were turned off for the process.

    Without them every checkpoint would look damaged when it is read.
    """
    serialization: Any = torch.serialization
    if not hasattr(serialization, "set_crc32_options"):  # early versions always write them
        yield
        return
    asked = serialization.get_crc32_options()
    serialization.set_crc32_options(True)
    try:
        yield
    finally:
        serialization.set_crc32_options(asked)


def _damaged_part(path: Path) -> str | None:
    """Name of the first part of torch's archive that fails its checksum; None if none does.

    A flipped bit in a tensor is still a valid number, so only a checksum finds it.
    """
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()
