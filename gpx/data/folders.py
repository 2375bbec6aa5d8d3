"""Search for data files, errors for missing ones, and checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from gpx.cache_folder import cache_folder
from gpx.errors import DataError

ROOT_VARIABLE = "GPX_DATA"


def under(root: str | None, path: str | Path, option: str = "path") -> Path:
    """``path``, relative to ``root`` if that is given and the path is not absolute.

    Raises:
        DataError: it is an empty text; ``option`` is its name.
    """
    if path == "":
        raise DataError(f"{option}= is empty: name the file to read")
    return Path(root or "").expanduser() / Path(path).expanduser()


def existing_file(path: str | Path) -> Path:
    """``path`` if it is a file; otherwise raises DataError with the nearest names there."""
    found = Path(path).expanduser()
    if found.is_file():
        return found
    if found.is_dir():
        raise DataError(f"{found} is a folder, expected a file")
    if found.exists():
        raise DataError(f"{found} is a device or a pipe, expected a regular file")
    if not found.parent.is_dir():
        raise DataError(f"{found} does not exist, and neither does its folder; check the path")
    others = sorted(p.name for p in found.parent.iterdir() if p.is_file())
    near = get_close_matches(found.name, others, n=3, cutoff=0.5)
    hint = f"nearest there: {', '.join(near)}" if near else "nothing there has a similar name"
    raise DataError(f"{found} does not exist; {hint}")


def candidate_folders(root: str | None, collection: str, name: str) -> list[Path]:
    """Folders that may hold the data set ``name``, in order of precedence.

    They are ``<name>`` and ``<collection>/<name>`` in ``root`` (data.root), $GPX_DATA and the
    cache.

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


def find(folders: list[Path], *files: str) -> Path | None:
    """Path of the first of ``files`` that is found in ``folders``; None if none is."""
    paths = (folder / file for folder in folders for file in files)
    return next((path for path in paths if path.is_file()), None)


def extra_file(root: str | None, name: str, file: str) -> Path:
    """A file of the data set ``name`` of the ``extra`` folder, which is never downloaded.

    Raises:
        DataError: it is not found.
    """
    folders = candidate_folders(root, "extra", name)
    found = find(folders, file)
    if found is None:
        raise DataError(
            f"data set {name}: {file} is in none of {', '.join(map(str, folders))}; put it into "
            f"the last of these, or point root= or $GPX_DATA at a folder that holds extra/{name}/"
        )
    return found


MASK_CHECKSUM = "mask "
"""Before the name of a file with a mask, in a record of checksums."""


def checksums(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files by name, in order; by path if several files have the same name."""
    files = list(files)
    names = [file.name for file in files]
    return {str(file) if names.count(file.name) > 1 else file.name: sha256(file) for file in files}


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
