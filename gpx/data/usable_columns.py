"""Columns of a table that cannot be inputs, and the table without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpx.data.hints import some_of
from gpx.data.table import Table
from gpx.errors import DataError


def with_usable_columns(table: Table, train: np.ndarray) -> Table:
    """The table without columns that cannot be inputs; its notes name them.

    These are columns without a value in training rows, and texts with too many categories
    (``Coding.fault``). Other tables than those whose coding has ``leave_out`` are returned as they
    are.

    Args:
        table: with its columns as given.
        train: indices of the training rows.

    Raises:
        DataError: no column is left.
    """
    coding = table.coding
    if coding is None or not coding.leave_out:
        return table
    faults = [coding.fault(c.column, table.x[train, i]) for i, c in enumerate(coding.columns)]
    if coding.missing == "drop":  # for gaps of usable columns only, judged by all rows
        gaps = [bool(np.isnan(column).any()) for column in table.x.T]
        left = "has gaps and many different texts"
        faults = [fault or (left if gap else "") for fault, gap in zip(faults, gaps, strict=True)]
    if not any(faults):
        return table
    kept = [i for i, fault in enumerate(faults) if not fault]
    listed = [
        f"{coding.columns[i].column.name!r} ({fault.removeprefix('has ')})"
        for i, fault in enumerate(faults)
        if fault
    ]
    if not kept:
        raise DataError(f"{table.where}: none of the columns can be an input: {some_of(listed)}")
    note = f"left out of the inputs: {some_of(listed)}"
    place = {old: new for new, old in enumerate(kept)}
    return replace(
        table,
        x=np.ascontiguousarray(table.x[:, kept]),
        input_names=tuple(table.input_names[i] for i in kept),
        labels=tuple(place[i] for i in table.labels if i in place),
        coding=replace(coding, columns=tuple(coding.columns[i] for i in kept)),
        notes="\n".join(filter(None, [table.notes, note])),
    )
