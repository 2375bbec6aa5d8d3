"""Which files a path of a stream names, and which of their columns are what."""

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

ELSEWHERE = {".csv": "CSVFile()", ".npz": "NPZFile()"}
"""Files that are read as a whole, and by which ``data=``."""


def find_parts(path: Path, target: Target) -> Parts:
    """The parts that ``path`` names.

    Args:
        path: a .npy file of inputs, with ``target`` the file of targets; a .npy or .parquet file
            with the target among its columns; or a folder of parts in the order of their names,
            either pairs ``x*.npy`` and ``y*.npy`` (``x_000.npy`` with ``y_000.npy``) or files with
            all columns.
        target: number of the target's column (negative from the end), of Parquet files its name
            too, or a list of several, None: the last; or, for a file of inputs, the .npy file of
            targets. None or "y" for pairs.

    Raises:
        DataError: nothing there, or nothing that fits.
    """
    if not path.exists():
        raise DataError(f"there is no {path}")
    if isinstance(target, str) and target.endswith(".npy"):
        beside = path.parent / target
        if path.is_dir() or not beside.exists():
            where = f"{path} is a folder" if path.is_dir() else f"there is no {beside}"
            raise DataError(
                f"target={target} names a file of targets beside a file of inputs, and {where}"
            )
        return _pairs([(path, beside)])
    if path.is_file() and path.suffix in ELSEWHERE:
        raise DataError(
            f"{path} is no file of a stream, which are .npy and .parquet: use "
            f"data={ELSEWHERE[path.suffix]}, which holds all rows in memory, or write the rows "
            "with numpy.save"
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
            "tables with the target among their columns"
        )
    names = {file.name for file in files}
    xs = [file for file in files if file.name.startswith("x")]
    if path.is_dir() and xs and any(name.startswith("y") for name in names):
        if target not in (None, "y"):
            raise DataError(
                f"target={target} is not there: {path} holds pairs x*.npy and y*.npy, whose "
                "target is y; leave target= out"
            )
        pairs = [(file, file.with_name("y" + file.name[1:])) for file in xs]
        partners = {name for pair in pairs for name in (pair[0].name, pair[1].name)}
        odd = sorted(partners ^ names)
        if odd:
            raise DataError(
                f"{path}: {odd[0]} is {'missing' if odd[0] in partners else 'there alone'}; "
                "every x*.npy needs a y*.npy with the same rest of its name"
            )
        return _pairs(pairs)
    return _tables(files, target)


def _visible(folder: Path, pattern: str) -> list[Path]:
    """Files in the order of their names, without those that file systems hide."""
    return sorted(file for file in folder.glob(pattern) if not file.name.startswith("."))


def _pairs(pairs: Sequence[tuple[Path, Path]]) -> Parts:
    parts = [Part(ArrayFile.of(x), ArrayFile.of(y)) for x, y in pairs]
    first = parts[0]
    assert first.targets is not None
    outputs = first.targets.width
    names = ("y",) if outputs == 1 else numbered_names(outputs, "y")
    return Parts(parts, first.inputs.width, numbered_names(first.inputs.width), names)


def _tables(files: Sequence[Path], target: Target) -> Parts:
    arrays = [ArrayFile.of(file) for file in files]
    width = arrays[0].width
    if width < 2:
        raise DataError(
            f"{arrays[0].path} has one column, expected inputs and a target; name the file of "
            "targets, target=y.npy, where they are apart"
        )
    names = numbered_names(width)
    layout = Layout(arrays[0].path, None, 0, names)
    chosen = [find_column(layout, column) for column in as_list(-1 if target is None else target)]
    inputs = [i for i in range(width) if i not in chosen]
    if not inputs or not chosen or len(set(chosen)) < len(chosen):
        raise DataError(
            f"{arrays[0].path}: target={target} leaves {len(inputs)} inputs and names "
            f"{len(set(chosen))} columns; expected different columns, and inputs beside them"
        )
    targets = ("y",) if len(chosen) == 1 else numbered_names(len(chosen), "y")
    parts = [Part(array, columns=(*inputs, *chosen)) for array in arrays]
    return Parts(parts, len(inputs), [names[i] for i in inputs], targets)
