"""Targets in the coding that each task's likelihood expects."""

from __future__ import annotations

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.base import Task

Label = float | str
"""Of a class, as the data have it: a number, or a text."""

_BINARY = ((0.0, 1.0), (-1.0, 1.0), (1.0, 2.0))


def encode_targets(table: Table, task: Task) -> tuple[Floats, tuple[Label, ...]]:
    """Targets as the likelihoods of ``task`` want them.

    Args:
        table: with targets in the data's own coding; the words false and true were read as 0 and 1.
        task: ``binary`` gives -1 and 1, ``multiclass`` 0..C-1 in ascending order of the labels,
            ``count`` and ``regression`` leave the numbers as they are.

    Returns:
        Targets (n,), or (n, p) for p numbers; and, for classes, the original label of each class,
        ascending: texts where the table has class names.

    Raises:
        DataError: the targets do not fit the task.
        ConfigError: no such task.
    """
    y = table.y
    if table.class_names:
        return _encode_names(table, task)
    if task == "regression":
        return y, ()
    if table.target_names:
        raise DataError(
            f"{table.where} has {len(table.target_names)} targets "
            f"({', '.join(table.target_names)}), and a likelihood of classes or counts takes one; "
            "choose one of them, or another likelihood="
        )
    if task == "count":
        bad = (y < 0) | (y != np.round(y))
        if bad.any():
            raise DataError(
                f"{_place(table, bad)}, expected a count (0, 1, 2, ...); "
                "choose another likelihood= for other targets"
            )
        return y, ()
    values = tuple(float(v) for v in np.unique(y))
    if task == "binary":
        if values not in _BINARY:
            raise DataError(
                f"{table.where}: the target ({table.target_name!r}) takes {_listed(values)}, "
                "expected two labels coded 0 and 1, -1 and 1, 1 and 2, or false and true; "
                "recode them or choose another likelihood="
            )
        return np.where(y == values[1], 1.0, -1.0), values
    if task == "multiclass":
        bad = y != np.round(y)
        if bad.any():
            raise DataError(
                f"{_place(table, bad)}, expected a class label (a whole number); "
                "choose another likelihood= for other targets"
            )
        if len(values) < 2:
            raise DataError(
                f"{table.where}: the target ({table.target_name!r}) takes {_listed(values)}, "
                "expected at least two classes"
            )
        return np.searchsorted(np.array(values), y).astype(np.float64), values
    raise ConfigError(f"task {task!r} is none of regression, binary, multiclass, count")


def _encode_names(table: Table, task: Task) -> tuple[Floats, tuple[str, ...]]:
    """Classes that have names, which the table numbers from 0."""
    names, y = table.class_names, table.y
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    said = f"{table.where}: the target ({table.target_name!r}) holds {len(names)} different texts"
    if task not in ("binary", "multiclass"):
        raise DataError(
            f"{said} ({shown}), expected numbers; for classes choose likelihood=Bernoulli() (two) "
            "or likelihood=Softmax()"
        )
    if len(names) < 2 or (task == "binary" and len(names) > 2):
        raise DataError(
            f"{said} ({shown}), expected {'two' if task == 'binary' else 'at least two'} classes"
            + ("; more of them are for likelihood=Softmax()" if len(names) > 2 else "")
        )
    return np.where(y == 1.0, 1.0, -1.0) if task == "binary" else y, names


def _place(table: Table, bad: np.ndarray) -> str:
    row = int(np.flatnonzero(bad)[0])
    return (
        f"{table.where}, data row {row + 1}, target ({table.target_name!r}): found {table.y[row]:g}"
        f" ({int(bad.sum())} such rows)"
    )


def _listed(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{v:g}" for v in values[:4])
    if len(values) == 1:
        return f"the single value {shown}"
    return f"{len(values)} values ({shown}{', ...' if len(values) > 4 else ''})"
