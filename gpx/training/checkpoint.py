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
"""Written into every checkpoint; a file without it is foreign."""


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` to ``path``; a kill at any moment leaves the old or the new file whole.

    Args:
        path: target file.
        state: tensors, numbers, strings, and dicts and lists of them; nothing else.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    with atomic_file(path) as file, _checksums():
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:
            # torch's archive writer answers a full disk with an assertion of its own
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_checkpoint(
    path: Path, device: torch.device | str = "cpu", *, mapped: bool = False
) -> dict[str, Any]:
    """Read a checkpoint; the file is never changed.

    Loaded with ``weights_only=True``: a malicious file cannot execute code.

    Args:
        path: of the file.
        device: where its tensors go.
        mapped: leave tensors in the file until they are used, for a look at everything else;
            their checksums are not compared.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or not one of ours; one sentence.

    Cost: the file is read twice, the first time for its checksums, which torch does not compare:
    of 250 MB 0.18 s in the place of 0.13 s.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        damaged = None if mapped else _damaged_part(path)
        with warnings.catch_warnings():  # torch warns of foreign pickles before it refuses them
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location=device, weights_only=True, mmap=mapped)
    except Exception as error:  # the unpickler can raise anything on foreign bytes
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
    """Inside, torch writes checksums, which a process may have turned off: without them every part
    of a checkpoint would look damaged."""
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
    """The first part of torch's archive whose bytes are not those that were written; None: all are.

    A flipped bit of a tensor is a number like any other: without this it would be predicted with.
    """
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()
