"""Loading of a data set: read, split, encode and standardise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpx.data.columns.choice import Choice
from gpx.data.columns.coding import Coding
from gpx.data.dataset import Dataset
from gpx.data.derivative_targets import (
    derivative_inputs,
    fit_with_derivatives,
    scale_derivatives,
)
from gpx.data.hints import averaged_gaps, filled_in, row_counter, skewed_target, some_of
from gpx.data.labels import Task, encode_targets, order_of_numbers, require_all_classes
from gpx.data.source import DataSource, Rows
from gpx.data.standardiser import Standardiser
from gpx.data.table import Table
from gpx.data.target_transform import TargetTransform, require_positive
from gpx.data.usable_columns import with_usable_columns
from gpx.errors import DataError
from gpx.likelihoods.row_noise import RowNoise

logger = logging.getLogger(__name__)

MAX_NAMED = 10
"""Constant columns that a warning lists by name."""

MAX_SIZE_RATIO = 10.0
"""Ratio of standard deviations of targets above which they hardly have one unit."""

MIN_TARGETS = 2
"""Fewest training values of each of several targets: fewer have no standard deviation."""


def load(
    source: DataSource,
    *,
    task: Task,
    order: Sequence[str] | None = None,
    derivatives: bool = False,
    with_respect_to: Sequence[Choice] | None = None,
) -> Dataset:
    """Read, split and standardise a data set.

    Mean and population standard deviation are those of the training rows. A column that is constant
    in the training rows is centred but not scaled, with a warning in the log. Inputs of a table
    with ``input_unit`` are divided by it instead.

    Args:
        source: data source, with the number of the split.
        task: of the likelihood; determines how targets are encoded.
        order: of classes that are texts, from the lowest to the highest.
        derivatives: whether targets after the first are its derivatives, which are scaled as the
            first and the inputs are.
        with_respect_to: the input of each derivative, by name or number; None: all inputs.

    Raises:
        DataError: the data are missing or malformed, the split does not exist, or the targets do
            not fit the task.

    Cost: O(nd) time and a few copies of the data.
    """
    made = source.dataset(task)
    if made is not None:
        if order is not None:
            raise order_of_numbers(made.name, made.target_name)
        return made
    table = source.table()
    train, test = source.split_rows(table)
    targets, labels = encode_targets(table, task, order)
    table = with_usable_columns(table, train)
    coding, inputs = table.coding, table.x
    input_names, unscaled = table.input_names, table.labels
    if coding is not None:
        coding, inputs = coding.fitted(table.x, train, table.where)
        input_names = coding.input_names
        unscaled = (*coding.unscaled, *(i for c in table.labels for i in coding.spans[c][1]))
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    train_x, train_y = x[torch.from_numpy(train)], y[torch.from_numpy(train)]
    test_x, test_y = x[torch.from_numpy(test)], y[torch.from_numpy(test)]
    by = derivative_inputs(with_respect_to, table, coding) if derivatives else ()
    _require_targets_in_training(table, train, derivatives)
    if task == "ordinal":
        require_all_classes(train_y, labels, table.where)
    if derivatives:
        scaler, constant = fit_with_derivatives(train_x, train_y)
    else:
        scaler, constant = Standardiser.fit(train_x, train_y, scale_targets=task == "regression")
    for column in unscaled:
        scaler.input_mean[column], scaler.input_scale[column] = 0.0, 1.0
        constant[column] = False
    if table.input_unit is not None:
        scaler.input_mean.zero_()
        scaler.input_scale.fill_(table.input_unit)
    if derivatives:
        scale_derivatives(scaler, by, train_y, constant)
    if table.input_unit is None:
        names = (*input_names, *(table.target_names or (table.target_name,)))
        warn_of_constants(f"data {table.name}", names, len(input_names), constant.numpy())
    return Dataset(
        name=table.name,
        split=source.split,
        task=task,
        train_x=scaler.transform_inputs(train_x),
        train_y=scaler.transform_targets(train_y),
        test_x=scaler.transform_inputs(test_x),
        test_y=scaler.transform_targets(test_y),
        scaler=scaler,
        input_names=input_names,
        target_name=table.target_name,
        labels=labels,
        coding=coding,
        target_transform=_target_transform(table, train, task),
        train_noise=_row_noise(table, train, scaler, task),
        test_noise=_row_noise(table, test, scaler, task),
        notes=_notes(source, table, train, task, coding),
        checksums=dict(table.checksums),
        target_names=table.target_names,
        derivatives=by,
    )


def _notes(source: DataSource, table: Table, train: Rows, task: Task, coding: Coding | None) -> str:
    """Notes on the data set, and hints about options of its source that may help; one a line."""
    notes = [table.notes, _missing_targets(table), _shared_noise(table, train)]
    if getattr(source, "id", "") is None:
        notes.append(row_counter(table.x, table.input_names))
    if coding is not None and coding.missing == "auto":
        notes.append(filled_in(table.x, table.input_names))
    if coding is not None:
        notes.append(averaged_gaps([c.column.name for c in coding.columns if c.stand_ins]))
    plain = table.noise is None and table.weights is None and not table.target_names
    if task == "regression" and plain and getattr(source, "target_transform", "") is None:
        notes.append(skewed_target(table.y[train], table.target_name))
    return "\n".join(filter(None, notes))


def _shared_noise(table: Table, train: Rows) -> str:
    """A hint where one column of noise variances serves targets of very different sizes; or ''."""
    if table.noise is None or table.noise.ndim > 1 or not table.target_names:
        return ""
    with np.errstate(all="ignore"):
        deviations = np.nanstd(table.y[train], axis=0)
    sizes = deviations[deviations > 0.0]
    if not len(sizes) or sizes.max() <= MAX_SIZE_RATIO * sizes.min():
        return ""
    return (
        "noise= is one column of variances for all targets, whose standard deviations are from "
        f"{sizes.min():.3g} to {sizes.max():.3g}: give a column for each, in the order of the "
        "targets, if their units differ"
    )


def _missing_targets(table: Table) -> str:
    """A note on missing targets, if there are several targets; otherwise empty."""
    missing = np.isnan(table.y)
    if not table.target_names or not missing.any():
        return ""
    pairs = zip(table.target_names, missing.sum(axis=0), strict=True)
    listed = ", ".join(f"{name} {count:,}" for name, count in pairs if count)
    return f"some of {len(missing):,} rows lack a target (only these cells are left out): {listed}"


def _require_targets_in_training(table: Table, train: Rows, derivatives: bool) -> None:
    """Raise DataError if one of several targets has too few training values.

    Derivatives have the scale of the first target, so that they may all be missing.
    """
    if derivatives:
        value = table.target_names[0]
        if not np.isfinite(table.y[train, 0]).any():
            raise DataError(
                f"{table.where}: the target {value!r} has no value in training rows, and its "
                "derivatives leave open where it lies; give at least one"
            )
        return
    for place, name in enumerate(table.target_names):
        there = int(np.isfinite(table.y[train, place]).sum())
        if there < MIN_TARGETS:
            raise DataError(
                f"{table.where}: the target {name!r} has {there} values in training rows, expected "
                f"at least {MIN_TARGETS}; leave it out"
            )


def _target_transform(table: Table, train: Rows, task: Task) -> TargetTransform | None:
    """The target transform of a table, fitted to the training targets; None if it has none.

    Raises:
        DataError: the target is not a single number, or not positive for a logarithm.
    """
    kind = table.target_transform
    if kind is None:
        return None
    if task != "regression" or table.target_names:
        raise DataError(
            f"{table.where}: target_transform={kind} needs a single target that is a number; leave "
            "it out"
        )
    if table.noise is not None or table.weights is not None:
        raise DataError(
            f"{table.where}: noise= and weights= describe the noise of the target itself, which "
            f"target_transform={kind} changes; leave one of them out"
        )
    require_positive(table, kind)
    return TargetTransform.fitted(kind, table.y[train])


def _row_noise(table: Table, rows: Rows, scaler: Standardiser, task: Task) -> RowNoise | None:
    """Known noise variances of some rows, standardised, and their weights; None without either.

    With several targets the variances are (n, p), as each has a scale of its own.

    Raises:
        DataError: known noise, and targets are not real numbers.
    """
    if table.noise is None and table.weights is None:
        return None
    ones = np.ones(len(rows))
    relative = torch.from_numpy(ones if table.weights is None else 1.0 / table.weights[rows])
    if table.noise is None:
        return RowNoise(torch.zeros_like(relative), relative)
    if task != "regression":
        raise DataError(
            f"{table.where}: noise= needs targets that are real numbers; leave it out (weights= "
            "may stay)"
        )
    known = torch.from_numpy(table.noise[rows])
    if table.target_names and known.ndim == 1:
        known = known.unsqueeze(1)
    # one after the other: the square of a scale below 1e-162 is zero
    return RowNoise(known / scaler.target_scale / scaler.target_scale, relative)


def warn_of_constants(
    where: str, names: Sequence[str], num_inputs: int, constant: NDArray[np.bool_]
) -> None:
    """Log which columns are constant in the training rows.

    Args:
        where: name of the data, for messages.
        names: of the inputs, then of the targets.
        num_inputs: d.
        constant (d + p,): mask of constant columns.
    """
    columns = np.flatnonzero(constant[:num_inputs])
    if len(columns):
        named = some_of([f"{c + 1} ({names[int(c)]!r})" for c in columns], MAX_NAMED)
        logger.warning(
            "%s: constant in the training rows, so centred but not scaled: input column %s",
            where,
            named,
        )
    for target in np.flatnonzero(constant[num_inputs:]):
        logger.warning(
            "%s: constant in the training rows, so centred but not scaled: the target %r",
            where,
            names[num_inputs + int(target)],
        )
