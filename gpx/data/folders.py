"""Where files are looked for, what is said of one that is not there, and their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from gpx.cache_folder import cache_folder
from gpx.errors import DataError

ROOT_VARIABLE = "GPX_DATA"


def under(root: str | None, path: str | Path) -> Path:
    """A path that starts from ``root`` where that is given and the path is relative."""
    return Path(root or "").expanduser() / Path(path).expanduser()


def existing_file(path: str | Path) -> Path:
    """The file at ``path``; raises DataError with the nearest names when there is none."""
    found = Path(path).expanduser()
    if found.is_file():
        return found
    if not found.parts:
        raise DataError("path= is empty: name the file to read")
    if found.is_dir():
        raise DataError(f"{found} is a folder, expected a file")
    if found.exists():
        raise DataError(f"{found} is a device or a pipe, expected a file that can be read twice")
    if not found.parent.is_dir():
        raise DataError(f"{found} does not exist, nor does its folder; check the path")
    others = sorted(p.name for p in found.parent.iterdir() if p.is_file())
    near = get_close_matches(found.name, others, n=3, cutoff=0.5)
    hint = f"nearest there: {', '.join(near)}" if near else "nothing there has a similar name"
    raise DataError(f"{found} does not exist; {hint}")


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


def find(folders: list[Path], *files: str) -> Path | None:
    """The first of ``folders`` that holds one of ``files``, as a path to it; None: none does."""
    paths = (folder / file for folder in folders for file in files)
    return next((path for path in paths if path.is_file()), None)


def extra_file(root: str | None, name: str, file: str) -> Path:
    """A file of data set ``name`` of the ``extra`` folder, which is never downloaded.

    Raises:
        DataError: it is nowhere; says where to put it.
    """
    folders = candidate_folders(root, "extra", name)
    found = find(folders, file)
    if found is None:
        raise DataError(
            f"data set {name}: {file} is in none of {', '.join(map(str, folders))}; put it into "
            f"the last of these, or point root= or $GPX_DATA at a folder that holds extra/{name}/"
        )
    return found


def checksums(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of the files by name, in their order; those of one name are told apart by folder."""
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
