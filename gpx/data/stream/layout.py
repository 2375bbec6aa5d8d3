"""The files of a stream, and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpx.data.columns.choice import as_list, find_column
from gpx.data.columns.delimited import Layout
from gpx.data.columns.numbers import numbered_names
from gpx.data.stream.array_file import ArrayFile
from gpx.data.stream.parquet import parquet_parts
from gpx.data.stream.parts import Part, Parts, Target
from gpx.errors import DataError

WHOLE_FILES = {".csv": "CSVFile()", ".npz": "NPZFile()"}
"""Files that can only be read as a whole, and the ``data=`` that does."""


def find_parts(path: Path, target: Target) -> Parts:
    """Find the files of a stream.

    Args:
        path: a .npy file of inputs, with ``target`` the file of targets; a .npy or .parquet file
            that also holds the target; or a folder of such files in the order of their names,
            either pairs ``x*.npy`` and ``y*.npy`` (``x_000.npy`` and ``y_000.npy``) or files with
            all columns.
        target: number of the target's column (negative from the end), or for Parquet files its
            name, or a list of several; None: the last column. For a file of inputs, the .npy file
            of targets. None or "y" for pairs.

    Raises:
        DataError: no files, or files that do not match.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if isinstance(target, str) and target.endswith(".npy"):
        beside = path.parent / target
        if path.is_dir() or not beside.exists():
            where = f"{path} is a folder" if path.is_dir() else f"there is no {beside}"
            raise DataError(
                f"target={target} must be a file of targets beside a file of inputs, but {where}"
            )
        return _pairs([(path, beside)])
    if path.is_file() and path.suffix in WHOLE_FILES:
        raise DataError(
            f"{path} cannot be streamed, only .npy and .parquet can: use "
            f"data={WHOLE_FILES[path.suffix]}, which reads all rows into memory, or write the "
            "rows with numpy.save"
        )
    files = _visible(path, "*.npy") if path.is_dir() else [path]
    packed = _visible(path, "*.parquet") if path.is_dir() else []
    if path.suffix == ".parquet":
        files, packed = [], [path]
    if files and packed:
        raise DataError(f"{path} holds .npy and .parquet files; expected one kind")
    if packed:
        return parquet_parts(packed, target)
    if not files:
        raise DataError(
            f"{path} holds no .npy or .parquet files: expected pairs x_000.npy and y_000.npy, or "
            "files with inputs and target"
        )
    names = {file.name for file in files}
    xs = [file for file in files if file.name.startswith("x")]
    if path.is_dir() and xs and any(name.startswith("y") for name in names):
        if target not in (None, "y"):
            raise DataError(
                f"target={target} does not exist: {path} holds pairs x*.npy and y*.npy, whose "
                "target is y; leave target= out"
            )
        pairs = [(file, file.with_name("y" + file.name[1:])) for file in xs]
        partners = {name for pair in pairs for name in (pair[0].name, pair[1].name)}
        odd = sorted(partners ^ names)
        if odd:
            raise DataError(
                f"{path}: {odd[0]} {'is missing' if odd[0] in partners else 'has no partner'}; "
                "every x*.npy needs a y*.npy with the same remaining name"
            )
        return _pairs(pairs)
    return _tables(files, target)


def _visible(folder: Path, pattern: str) -> list[Path]:
    """Files in the order of their names, without hidden ones."""
    return sorted(file for file in folder.glob(pattern) if not file.name.startswith("."))


def _pairs(pairs: Sequence[tuple[Path, Path]]) -> Parts:
    """Parts of files of inputs and files of targets."""
    parts = [Part(ArrayFile.of(x), ArrayFile.of(y)) for x, y in pairs]
    first = parts[0]
    assert first.targets is not None
    outputs = first.targets.width
    names = ("y",) if outputs == 1 else numbered_names(outputs, "y")
    return Parts(parts, first.inputs.width, numbered_names(first.inputs.width), names)


def _tables(files: Sequence[Path], target: Target) -> Parts:
    """Parts of .npy files that hold inputs and targets."""
    arrays = [ArrayFile.of(file) for file in files]
    width = arrays[0].width
    if width < 2:
        raise DataError(
            f"{arrays[0].path} has one column, expected inputs and a target; if targets are in "
            "another file, name it with target=y.npy"
        )
    names = numbered_names(width)
    layout = Layout(arrays[0].path, None, 0, names)
    chosen = [find_column(layout, column) for column in as_list(-1 if target is None else target)]
    inputs = [i for i in range(width) if i not in chosen]
    if not inputs or not chosen or len(set(chosen)) < len(chosen):
        raise DataError(
            f"{arrays[0].path}: target={target} leaves {len(inputs)} inputs and names "
            f"{len(set(chosen))} columns; expected different columns, and further ones as inputs"
        )
    targets = ("y",) if len(chosen) == 1 else numbered_names(len(chosen), "y")
    parts = [Part(array, columns=(*inputs, *chosen)) for array in arrays]
    return Parts(parts, len(inputs), [names[i] for i in inputs], targets)
