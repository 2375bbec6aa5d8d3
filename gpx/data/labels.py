"""Encoding of targets as the likelihood of each task expects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from gpx.data.columns.numbers import EXACT, Floats
from gpx.data.table import Table
from gpx.errors import DataError
from gpx.likelihoods.base import Task, is_classification
from gpx.tensor_checks import check_one_of

Label = float | str
"""Label of a class in the data: a number or a text."""

MAX_TEXTS = 100
"""Most texts that a target is taken to have as classes without being asked."""


class TextTargets(DataError):
    """The target holds texts, and the likelihood is of numbers.

    Attributes:
        classes: the texts.
        rows: number of rows.
    """

    def __init__(self, message: str, classes: Sequence[str], rows: int) -> None:
        super().__init__(message)
        self.classes, self.rows = tuple(classes), rows

    @property
    def likelihood(self) -> str:
        """The likelihood that suits them; empty for a single text, and for almost as many as rows.

        The latter are hardly classes: names, or numbers with a unit.
        """
        count = len(self.classes)
        if count < 2 or count > min(MAX_TEXTS, max(10, self.rows // 10)):
            return ""
        return "bernoulli" if count == 2 else "softmax"


_BINARY = ((0.0, 1.0), (-1.0, 1.0), (1.0, 2.0))


def encode_targets(
    table: Table, task: Task, order: Sequence[str] | None = None
) -> tuple[Floats, tuple[Label, ...]]:
    """Encode the targets of a table for the likelihoods of a task.

    Args:
        table: with targets in the data's own coding; the words false and true were read as 0 and 1.
        task: ``binary`` gives -1 and 1; ``multiclass`` and ``ordinal`` give 0..C-1 in ascending
            order of the labels; other tasks leave numbers unchanged.
        order: for ``ordinal`` targets that are texts: all texts, from the lowest to the highest.

    Returns:
        targets (n,), or (n, p) for p numbers; and, for classes, the original label of each class,
        ascending: texts if the table has class names.

    Raises:
        DataError: the targets do not fit the task.
        ConfigError: no such task.
    """
    y = table.y
    if table.class_names:
        return _encode_names(table, task, order)
    if order is not None:
        raise order_of_numbers(table.where, table.target_name)
    if task == "regression":
        return y, ()
    check_one_of(get_args(Task), task=task)
    if table.target_names:
        raise DataError(
            f"{table.where} has {len(table.target_names)} targets "
            f"({', '.join(table.target_names)}), and a likelihood of classes, counts, proportions "
            "or positive numbers takes one; choose one of them, or another likelihood="
        )
    bad, expected = misfits(y, task)
    if bad.any():
        raise DataError(
            f"{_place(table, bad)}, expected {expected}; choose another likelihood= for other "
            "targets"
        )
    if not is_classification(task):
        return y, ()
    bad = np.abs(y) >= EXACT
    if bad.any():
        raise DataError(
            f"{_place(table, bad)}, expected a class label below 2^53 in size, as larger ones "
            "are rounded and may be taken for one another: number the classes from 0"
        )
    values = tuple(float(v) for v in np.unique(y))
    if task == "binary":
        if values not in _BINARY:
            several = " (softmax for several classes)" if len(values) > 2 else ""
            raise DataError(
                f"{table.where}: the target ({table.target_name!r}) takes {_listed(values)}, "
                "expected two labels coded 0 and 1, -1 and 1, 1 and 2, or false and true; "
                f"recode them or choose another likelihood={several}"
            )
        return np.where(y == values[1], 1.0, -1.0), values
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


def order_of_numbers(where: str, target_name: str) -> DataError:
    """The error for an order of classes that are numbers."""
    return DataError(
        f"{where}: the target ({target_name!r}) holds numbers, which are already ordered: leave "
        "Ordinal.order out"
    )


def misfits(y: Floats, task: Task) -> tuple[np.ndarray, str]:
    """Mask of the targets (n,) that the task does not allow, and a description of those it does."""
    if task == "count":
        return (y < 0) | (y != np.round(y)), "a count (0, 1, 2, ...)"
    if task == "proportion":
        return (y <= 0.0) | (y >= 1.0), "a proportion above 0 and below 1"
    if task == "positive":
        return y <= 0.0, "a number above 0"
    return np.zeros(len(y), dtype=bool), "a number"


def require_all_classes(y: Tensor, labels: Sequence[Label], where: str) -> None:
    """Raise DataError if an ordered class has no training row.

    Args:
        y (n,): numbers of the classes of the training rows.
        labels: of all classes.
        where: name of the data, for messages.
    """
    missing = torch.bincount(y.long(), minlength=len(labels)) == 0
    if bool(missing.any()):
        label = labels[int(missing.int().argmax())]
        shown = repr(label) if isinstance(label, str) else f"{label:g}"
        raise DataError(
            f"{where}: no training row is of class {shown}, so that its cut points cannot be "
            "learned: merge it with the next class, or choose another split"
        )


def _in_order(
    table: Table, order: Sequence[str] | None, said: str
) -> tuple[Floats, tuple[str, ...]]:
    """Encode classes with names as 0, 1, ... in the given order."""
    names = [str(name) for name in order or ()]
    if order is None:
        raise DataError(
            f"{said}, whose order is not known: give it as order=[...], from the lowest class to "
            "the highest"
        )
    faults = [
        *(f"lacks {n!r}" for n in table.class_names if n not in names),
        *(f"has {n!r}, which no row has" for n in names if n not in table.class_names),
        *(f"has {n!r} {names.count(n)} times" for n in names if names.count(n) > 1),
    ]
    if faults:
        raise DataError(f"{said}, and Ordinal.order {faults[0]}: name each of them once")
    codes = np.array([names.index(name) for name in table.class_names], dtype=np.float64)
    return codes[table.y.astype(int)], tuple(names)


def _encode_names(
    table: Table, task: Task, order: Sequence[str] | None
) -> tuple[Floats, tuple[str, ...]]:
    """Encode classes with names, which the table numbers from 0."""
    names, y = table.class_names, table.y
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    count = "one text" if len(names) == 1 else f"{len(names)} different texts"
    said = f"{table.where}: the target ({table.target_name!r}) holds {count}"
    if task == "ordinal":
        return _in_order(table, order, f"{said} ({shown})")
    if not is_classification(task):
        raise TextTargets(
            f"{said} ({shown}), expected numbers; for classes choose likelihood="
            + ("Bernoulli()" if len(names) == 2 else "Softmax(), or Ordinal() if ordered"),
            names,
            len(y),
        )
    if len(names) < 2 or (task == "binary" and len(names) > 2):
        raise DataError(
            f"{said} ({shown}), expected {'two' if task == 'binary' else 'at least two'} classes"
            + ("; for more classes use likelihood=Softmax()" if len(names) > 2 else "")
        )
    return np.where(y == 1.0, 1.0, -1.0) if task == "binary" else y, names


def _place(table: Table, bad: np.ndarray) -> str:
    """Place and value of the first bad target, and the number of bad ones."""
    row = int(np.flatnonzero(bad)[0])
    return (
        f"{table.where}, data row {row + 1}, target ({table.target_name!r}): found {table.y[row]:g}"
        f" (rows like this: {int(bad.sum())})"
    )


def _listed(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{v:g}" for v in values[:4])
    if len(values) == 1:
        return f"the single value {shown}"
    return f"{len(values)} values ({shown}{', ...' if len(values) > 4 else ''})"
