"""Where files of known data sets are looked for."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gpx.cache_folder import cache_folder
from gpx.errors import DataError

ROOT_VARIABLE = "GPX_DATA"


def candidate_folders(root: str | None, collection: str, name: str) -> list[Path]:
    """Folders that may hold data set ``name``, in the order they are looked in.

    ``root`` (data.root), then $GPX_DATA, then the cache; in each ``<name>`` and
    ``<collection>/<name>``.

    Raises:
        DataError: ``root`` is given and is not a folder.
    """
    roots: list[Path] = []
    if root is not None:
        given = Path(root).expanduser()
        if not given.is_dir():
            raise DataError(f"root={root} is not a folder; correct it or leave it out")
        roots.append(given)
    if os.environ.get(ROOT_VARIABLE):
        roots.append(Path(os.environ[ROOT_VARIABLE]).expanduser())
    roots.append(cache_folder())
    return [folder for r in roots for folder in (r / name, r / collection / name)]


def find(folders: list[Path], file: str) -> Path | None:
    """The first of ``folders`` that holds ``file``, as a path to it; None when none does."""
    return next((folder / file for folder in folders if (folder / file).is_file()), None)


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
