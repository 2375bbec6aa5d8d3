"""Targets that are derivatives of the first one: the input of each, and its scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.data.columns.choice import Choice, named_column
from gpx.data.columns.coding import Coding
from gpx.data.standardiser import Standardiser
from gpx.data.table import Table
from gpx.errors import DataError


def derivative_inputs(
    named: Sequence[Choice] | None, table: Table, coding: Coding | None
) -> tuple[int, ...]:
    """The input of the model by which the first target is differentiated, for each further target.

    Args:
        named: columns of the table by name, or inputs of the model by number; None: all inputs in
            their order.
        table: with at least two targets.
        coding: how the inputs are computed from the columns, fitted; None: they are the columns.

    Raises:
        DataError: there is one target, another number of inputs is named than there are
            derivatives, one is named twice, does not exist, or is no number.
    """
    where, names = table.where, table.input_names if coding is None else coding.input_names
    if len(table.target_names) < 2:
        raise DataError(
            f"{where} has one target, {table.target_name}, and derivatives of it are further "
            f"targets: list them after it, as in target=[{table.target_name},slope] (in Python: "
            "columns of y)"
        )
    value, *others = table.target_names
    chosen = list(range(len(names))) if named is None else list(named)
    if len(chosen) != len(others):
        inputs = ", ".join(names if named is None else map(str, chosen))
        raise DataError(
            f"{where}: the targets after {value} are {', '.join(others)} ({len(others)}), and the "
            f"inputs {'' if named is None else 'of with_respect_to= '}are {inputs} "
            f"({len(chosen)}): with_respect_to=[...] names one for each derivative, in their order"
        )
    found = tuple(_input(each, table, coding, names) for each in chosen)
    for place, column in enumerate(found):
        if column in found[:place]:
            raise DataError(f"{where}: with_respect_to= names the input {names[column]!r} twice")
    return found


def _input(named: Choice, table: Table, coding: Coding | None, names: Sequence[str]) -> int:
    """Number of the input of the model that a name, or a number, stands for."""
    if isinstance(named, int) and not isinstance(named, bool):
        if not 0 <= named < len(names):
            raise DataError(
                f"{table.where} has {len(names)} inputs and none of number {named}, which "
                "with_respect_to= needs; they are numbered from 0"
            )
        column = named
    elif coding is None:
        why = " among its inputs, which with_respect_to= needs"
        return named_column(names, str(named), table.where, why)
    else:
        why = " among its inputs, which with_respect_to= needs"
        place = named_column(coding.names, str(named), table.where, why)
        column = coding.spans[place][1][0]
    for coded, span in () if coding is None else coding.spans:
        if column not in span:
            continue
        what = {"category": "holds texts", "date": "holds dates"}.get(coded.column.kind, "")
        if column != span[0] and coded.column.kind != "category":
            what = "marks missing values"
        if what:
            raise DataError(
                f"{table.where}: with_respect_to= names the input {names[column]!r}, which {what}: "
                "derivatives are by inputs that are numbers"
            )
    return column


def fit_with_derivatives(x: Tensor, y: Tensor) -> tuple[Standardiser, Tensor]:
    """``Standardiser.fit`` of inputs and values; scales of derivatives follow from these.

    Args:
        x (n, d), y (n, p): training rows, values first, NaN where one is missing.

    Returns:
        as ``Standardiser.fit``, for p targets; the scales of derivatives are those of the values.
    """
    values = y[:, 0]
    alone, constant = Standardiser.fit(x, values[~values.isnan()], scale_targets=True)
    made = Standardiser(x.shape[1], y.shape[1])
    made.input_mean.copy_(alone.input_mean)
    made.input_scale.copy_(alone.input_scale)
    made.target_mean[0] = alone.target_mean
    made.target_scale.fill_(float(alone.target_scale))
    return made, torch.cat([constant, torch.zeros(y.shape[1] - 1, dtype=torch.bool)])


def scale_derivatives(
    scaler: Standardiser, inputs: Sequence[int], y: Tensor, constant: Tensor
) -> None:
    """Set the scales of derivatives, in place, so that they are those of the standardised values.

    d (f / s_f) / d (x_i / s_i) = (s_i / s_f) df / dx_i, without a shift. Where all values are one
    number, their scale is the root mean square of f's changes over the scales of the inputs.

    Args:
        scaler: of ``fit_with_derivatives``, with the scales of the inputs that are used.
        inputs: of ``derivative_inputs``.
        y (n, p): training targets in their own units, NaN where one is missing.
        constant (d + p,): mask of constant columns, changed in place.
    """
    steps = scaler.input_scale[list(inputs)]
    place = len(scaler.input_scale)
    if bool(constant[place]):
        change = (y[:, 1:] * steps).square()
        known = change[~change.isnan()]
        if len(known) and bool(known.mean() > 0.0):
            scaler.target_scale[0] = known.mean().sqrt()
            constant[place] = False
    scaler.target_scale[1:] = scaler.target_scale[0] / steps
