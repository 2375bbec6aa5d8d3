"""Conversion of the columns of a file into a ``Table``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpx.data.columns.choice import named_column
from gpx.data.columns.coding import CodedColumn, Coding
from gpx.data.columns.column import HINT, UNSEEN, Column, column_of
from gpx.data.columns.frame import Frame
from gpx.data.columns.numbers import Floats, Mask
from gpx.data.hints import some_of
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError

TARGET_HINT = "remove the row, or choose missing=drop or missing=mean, which leave it out"


@dataclass(frozen=True)
class ColumnOptions:
    """Options for the columns of a table.

    Attributes:
        policies: a ``Coding`` without columns.
        categories, dates: names of the columns that hold these; None: found from their values.
        date_format: of dates that are not in ISO 8601, as for ``datetime.strptime``.
        unscaled: names of the inputs that are not standardised.
    """

    policies: Coding
    categories: tuple[str, ...] | None = None
    dates: tuple[str, ...] | None = None
    date_format: str | None = None
    unscaled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in set(self.categories or ()) & set(self.dates or ()):
            raise ConfigError(f"the column {name!r} is among both categories= and dates=")

    def column(self, frame: Frame, place: int) -> Column:
        """The kind of one column of a frame."""
        name = frame.names[place]
        return column_of(
            name,
            frame.columns[place],
            category=None if self.categories is None else name in self.categories,
            date=None if self.dates is None else name in self.dates,
            form=self.date_format,
        )


@dataclass(frozen=True)
class GivenRows:
    """Inputs, targets and further columns of some rows of a table, as given.

    Attributes:
        inputs: at least one column.
        targets: one column or several.
        noise: one column of known noise variances, or one for each of several targets; None: none.
        weights: one column, the number of observations that each row stands for; None: none.
    """

    inputs: Frame
    targets: Frame
    noise: Frame | None = None
    weights: Frame | None = None


def table_of(
    rows: GivenRows,
    test: GivenRows | None,
    options: ColumnOptions,
    test_masks: Mask | None = None,
    **about: Any,
) -> Table:
    """The table of columns of any kind.

    Args:
        rows: to split, or to train on if ``test`` is given.
        test: rows to test on, with the same columns.
        options: for the columns.
        test_masks (n, k): which of ``rows`` to test on, if ``test`` is None.
        about: name, origin and checksums of the table.

    Raises:
        DataError: a value is not of the kind of its column, or is missing and that is refused.
    """
    columns = [options.column(rows.inputs, i) for i in range(len(rows.inputs.names))]
    several = len(rows.targets.names) > 1
    targets = [
        Column(rows.targets.names[i]) if several else options.column(rows.targets, i)
        for i in range(len(rows.targets.names))
    ]
    if rows.noise is not None and len(rows.noise.names) not in (1, len(targets)):
        raise DataError(
            f"{rows.noise.where}: noise= has {len(rows.noise.names)} columns and there are "
            f"{len(targets)} targets: give one column of variances for each, in the order of the "
            "targets, or a single one for all"
        )
    if targets[0].kind == "date":
        raise DataError(
            f"{rows.targets.place(0, 0)}: the target holds dates, expected numbers or classes"
        )
    parts = [_numbers(part, columns, targets, options) for part in (rows, test) if part is not None]
    x, y, noise, weights = (
        each[0] if test is None else np.concatenate(each) for each in zip(*parts, strict=True)
    )
    if test is not None:
        test_masks = np.repeat([False, True], [len(part[1]) for part in parts])[:, None]
    lacks, what, notes = np.isnan(y).all(axis=1), "have no target", ""
    if options.policies.missing == "drop":
        used = x
        if options.policies.leave_out:  # a column that is no input in the end costs no rows
            given = zip(columns, parts[0][0].T, strict=True)
            used = x[:, [not options.policies.fault(*column) for column in given]]
        lacks = np.any([np.isnan(part).any(axis=1) for part in (used, y, noise, weights)], axis=0)
        what = "lack a value"
    if lacks.all():
        raise DataError(f"{rows.targets.where}: all {len(lacks):,} rows {what}")
    if lacks.any():
        notes = f"{int(lacks.sum()):,} of {len(lacks):,} rows {what} and are left out"
        x, y, noise, weights = x[~lacks], y[~lacks], noise[~lacks], weights[~lacks]
        if test_masks is not None and len(test_masks) == len(lacks):
            test_masks = test_masks[~lacks]
    classes = targets[0].texts
    if classes:  # all rows of a class may have been left out
        there = np.unique(y[:, 0]).astype(int)
        classes, y = tuple(classes[code] for code in there), np.searchsorted(there, y).astype(float)
    dates = [c for c in columns if c.form is not None and options.date_format is None]
    if dates:
        listed = some_of([f"{column.name!r} as {column.form}" for column in dates])
        notes = "\n".join(filter(None, [notes, f"dates are read in the format of all: {listed}"]))
    coding = replace(options.policies, columns=tuple(map(CodedColumn, columns)))
    carried = coding.identifier is not None or bool(coding.noise)
    gaps = options.policies.missing == "mean" or bool(np.isnan(x).any())
    needed = gaps or carried or not coding.plain
    names = rows.targets.names
    return Table(
        x=np.ascontiguousarray(x),
        y=np.ascontiguousarray(y if several else y[:, 0]),
        input_names=rows.inputs.names,
        target_name=", ".join(names),
        target_names=names if several else (),
        class_names=classes,
        labels=_unscaled(rows.inputs, options),
        coding=coding if needed else None,
        test_masks=test_masks,
        noise=(noise if noise.shape[1] > 1 else noise[:, 0]) if noise.size else None,
        weights=weights[:, 0] if weights.size else None,
        notes=notes,
        **about,
    )


def _unscaled(inputs: Frame, options: ColumnOptions) -> tuple[int, ...]:
    """Places of the inputs that are not standardised."""
    why = " among its inputs, which unscaled= needs"
    return tuple(named_column(inputs.names, name, inputs.where, why) for name in options.unscaled)


def _numbers(
    rows: GivenRows, columns: Sequence[Column], targets: Sequence[Column], options: ColumnOptions
) -> tuple[Floats, Floats, Floats, Floats]:
    """Inputs (n, d), targets (n, p), noise (n, 0, 1 or p) and weights (n, 0 or 1).

    Missing values are NaN. If there are several targets, some may be missing in any case; so may
    the noise variance of a missing target, which is 0 then.
    """
    dropped = options.policies.missing == "drop"
    allowed = options.policies.missing != "refuse"
    none = np.empty((len(rows.targets), 0))
    x = _stacked(rows.inputs, columns, allowed) if columns else none
    y = _stacked(rows.targets, targets, allowed or len(targets) > 1, TARGET_HINT)
    if targets[0].kind == "category" and (y[:, 0] == UNSEEN).any():
        row, frame = int((y[:, 0] == UNSEEN).argmax()), rows.targets
        raise DataError(
            f"{frame.place(row, 0)}: found the class {frame.columns[0][row]!r}, which no training "
            "row has; remove such rows from the test set"
        )
    noise = none
    if rows.noise is not None:
        absent = np.isnan(y) if len(rows.noise.names) == y.shape[1] > 1 else None
        noise = noise_variances(rows.noise, dropped, absent)
    weights = none if rows.weights is None else _weights(rows.weights, dropped)[:, None]
    return x, y, noise, weights


def _stacked(frame: Frame, columns: Sequence[Column], missing: bool, hint: str = HINT) -> Floats:
    """All columns of a frame as numbers (n, k)."""
    made = [
        column.numbers(frame.columns[i], frame.placed(i), missing, hint)
        for i, column in enumerate(columns)
    ]
    return np.column_stack(made)


def noise_variances(frame: Frame, missing: bool = False, absent: Mask | None = None) -> Floats:
    """The columns of a frame as noise variances (n, q).

    Args:
        frame: of q columns.
        missing: whether values may be missing; they become NaN.
        absent (n, q): missing targets, whose noise variance may be missing and becomes 0.

    Raises:
        DataError: a value is not a number, or negative.
    """
    columns = [Column(name) for name in frame.names]
    found = _stacked(frame, columns, missing or absent is not None, TARGET_HINT)
    if absent is not None:
        found[absent & np.isnan(found)] = 0.0
        if not missing and np.isnan(found).any():
            row, column = map(int, np.argwhere(np.isnan(found))[0])
            raise DataError(
                f"{frame.place(row, column)}: the noise variance of a target is missing; give it, "
                "or leave out the target's value in this row as well"
            )
    expected = "a noise variance (0 or more, in the squared unit of the target)"
    _require(frame, found, found < 0.0, expected)
    return found


def _weights(frame: Frame, missing: bool) -> Floats:
    found = _stacked(frame, [Column(frame.names[0])], missing, TARGET_HINT)[:, 0]
    _require(frame, found[:, None], found[:, None] <= 0.0, "a weight above 0; remove the row")
    return found


def _require(frame: Frame, values: Floats, bad: Mask, expected: str) -> None:
    if bad.any():
        row, column = map(int, np.argwhere(bad)[0])
        value = values[row, column]
        raise DataError(f"{frame.place(row, column)}: found {value:g}, expected {expected}")
