"""Conversion of table columns into model inputs, fitted to the training rows."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from gpx.data.columns.column import UNSEEN, Column, Kind
from gpx.data.columns.dates import UNIT
from gpx.data.columns.frame import Frame
from gpx.data.columns.gaps import FEW_GAPS, STAND_INS, stand_ins
from gpx.data.columns.numbers import Floats
from gpx.errors import DataError
from gpx.tensor_checks import check_at_least, check_one_of

logger = logging.getLogger(__name__)

NEW_HINT = (
    "remove the row or fill in the value; a model trained with missing=mean accepts missing values"
)

Missing = Literal["auto", "refuse", "drop", "mean"]
Unseen = Literal["apart", "refuse"]
Unusable = Literal["auto", "leave_out", "refuse"]


@dataclass(frozen=True)
class CodedColumn:
    """One column, with statistics of the training rows.

    Attributes:
        column: the column; for categories, with the texts of the training rows.
        fill: inputs in place of a missing value: the training mean, or the share of each category;
            empty if missing values are refused.
        indicator: whether an additional input indicates missing values, which is the case if
            training rows lack values, and with ``missing=auto`` if other rows of the table do.
        stand_ins: equally probable training values over which predictions for rows with a missing
            value are averaged. Empty without an indicator; if at least ``FEW_GAPS`` training rows
            lack a value, so that it suffices; and in models saved by early versions.
    """

    column: Column
    fill: tuple[float, ...] = ()
    indicator: bool = False
    stand_ins: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs computed from the column."""
        column = self.column
        if column.kind == "category":
            made = tuple(f"{column.name}={text}" for text in column.texts)
        else:
            made = (f"{column.name} ({UNIT})" if column.kind == "date" else column.name,)
        return (*made, f"{column.name} is missing") if self.indicator else made

    def inputs(self, values: Floats) -> Floats:
        """Inputs (n, k) computed from the numbers (n,) of the column.

        A category has one input per text, 1 for its own and 0 for the others. An unknown text gets
        the value (1 - sqrt(1 + K)) / K in all K inputs, which is as far from each category as the
        categories are from each other.
        """
        absent = np.isnan(values)
        if self.column.kind == "category":
            count = len(self.column.texts)
            made = np.zeros((len(values), count))
            known = np.flatnonzero(values >= 0)
            made[known, values[known].astype(int)] = 1.0
            made[values == UNSEEN] = (1.0 - math.sqrt(1.0 + count)) / count
        else:
            made = values[:, None].copy()
        if absent.any():
            made[absent] = self.fill
        return np.column_stack([made, absent]) if self.indicator else made


@dataclass(frozen=True)
class Coding:
    """All input columns of a table, and policies for missing and unknown values.

    Attributes:
        columns: in the order of training.
        missing: ``refuse``: missing values are errors; ``drop``: rows with missing values are
            dropped from training and testing, and refused in prediction; ``mean``: the training
            mean is filled in, with an additional indicator input if training rows lack values. If
            only few training rows do, predictions for such rows are averaged over training values.
            ``auto``: the same for columns that lack values, with the indicator also if only test
            rows do; in prediction missing values of other columns are errors.
        unseen: treatment of categories without training rows. ``apart``: such a category is as far
            from each category as these are from each other, with a warning in the log; ``refuse``:
            an error.
        identifier: name of the column that identifies rows and is not an input; None: none.
        noise: names of the columns of known noise variances: none, one, or one for each target.
        max_categories: most categories that a column may have in training rows.
        leave_out: whether columns that cannot be inputs are to be left out
            (``gpx.data.usable_columns``); otherwise they are errors.
    """

    columns: tuple[CodedColumn, ...]
    missing: Missing = "refuse"
    unseen: Unseen = "apart"
    identifier: str | None = None
    noise: tuple[str, ...] = ()
    max_categories: int = 100
    leave_out: bool = False

    def __post_init__(self) -> None:
        """Check the policies; raises ConfigError."""
        check_one_of(get_args(Missing), missing=self.missing)
        check_one_of(get_args(Unseen), unseen=self.unseen)
        check_at_least(1, max_categories=self.max_categories)

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> Coding:
        """A coding whose inputs are columns of numbers."""
        return cls(tuple(CodedColumn(Column(name)) for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(coded.column.name for coded in self.columns)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(name for coded in self.columns for name in coded.names)

    @property
    def spans(self) -> list[tuple[CodedColumn, range]]:
        """Each column with the indices of its inputs."""
        stops = itertools.accumulate(len(coded.names) for coded in self.columns)
        pairs = zip(self.columns, stops, strict=True)
        return [(coded, range(stop - len(coded.names), stop)) for coded, stop in pairs]

    @property
    def plain(self) -> bool:
        """Whether the inputs are simply the columns."""
        return all(c.column.kind == "number" and not c.fill for c in self.columns)

    @property
    def unscaled(self) -> tuple[int, ...]:
        """Indices of the inputs that are 0 or 1, which are not standardised."""
        numbers: list[int] = []
        for coded, span in self.spans:
            if coded.column.kind == "category":
                numbers += span
            elif coded.indicator:
                numbers.append(span[-1])
        return tuple(numbers)

    def fault(self, column: Column, seen: Floats) -> str:
        """What keeps a column from being an input, after its name; empty if nothing does.

        Args:
            column: one of ``columns``.
            seen: its numbers in the training rows, from ``Column.numbers``.
        """
        given = seen[~np.isnan(seen)]
        if not len(given):
            return "has no value in training rows"
        count = len(np.unique(given)) if column.kind == "category" else 0
        if count > max(10, len(given) // 2):
            return f"has {count} different texts in {len(given)} training rows"
        if count > self.max_categories:
            return f"has {count} different texts, more than max_categories={self.max_categories}"
        return ""

    def fitted(self, x: Floats, train: np.ndarray, where: str) -> tuple[Coding, Floats]:
        """The coding fitted to the training rows, and the inputs of all rows.

        Args:
            x (n, columns): numbers of the columns, from ``Column.numbers``.
            train: indices of the training rows.
            where: name of the table, for error messages.

        Raises:
            DataError: a column has too many different texts, or no value at all.
        """
        coded, made = [], []
        for i, old in enumerate(self.columns):
            column, values = old.column, x[:, i]
            seen = values[train]
            given = seen[~np.isnan(seen)]
            fault = self.fault(column, seen)
            if fault:
                hint = f", or set id={column.name} if it names the rows" if len(given) else ""
                raise DataError(
                    f"{where}: column {column.name!r} {fault}; leave it out with inputs={hint}"
                )
            if column.kind == "category":
                codes = np.unique(given).astype(int)
                column = replace(column, texts=tuple(column.texts[code] for code in codes))
                known = np.isin(values, codes)
                place = np.searchsorted(codes, np.where(known, values, codes[0]))
                values = np.where(np.isnan(values), np.nan, np.where(known, place, UNSEEN))
                self._report_unseen(column.name, int((values == UNSEEN).sum()), where)
            fill: tuple[float, ...] = ()
            several: tuple[float, ...] = ()
            if self.missing == "mean" or (self.missing == "auto" and np.isnan(values).any()):
                fill = (float(given.mean()),)
                if column.kind == "category":
                    shares = np.bincount(np.searchsorted(codes, given)) / len(given)
                    fill = tuple(map(float, shares))
            gaps = len(seen) - len(given) if fill else 0
            # a mean for values that only test rows lack would pass for a value that is known
            lacking = gaps > 0 or (self.missing == "auto" and bool(fill))
            if lacking and gaps < FEW_GAPS:
                kept = values[train]
                several = stand_ins(kept[~np.isnan(kept)])
            new = CodedColumn(column, fill, indicator=lacking, stand_ins=several)
            coded.append(new)
            made.append(new.inputs(values))
        return replace(self, columns=tuple(coded)), np.ascontiguousarray(np.hstack(made))

    def _report_unseen(self, name: str, count: int, where: str) -> None:
        """Log, or refuse, rows with a category that no training row has."""
        if count == 0:
            return
        found = (
            f"{count} row{'s have' if count > 1 else ' has'} a category that no training row has"
        )
        if self.unseen == "refuse":
            raise DataError(f"{where}: column {name!r}: {found}; use unseen=apart to accept them")
        logger.warning(
            "%s: column %r: %s; it is treated as equally different from all known ones",
            where,
            name,
            found,
        )

    def __call__(self, frame: Frame) -> Floats:
        """Inputs (n, d) for a frame that has the columns of training, in order.

        Raises:
            DataError: an invalid or missing value, with row and column; or a category that no
                training row has, if that is refused.
        """
        made = []
        for i, coded in enumerate(self.columns):
            column, place = coded.column, frame.placed(i)
            values = column.numbers(frame.columns[i], place, bool(coded.fill), NEW_HINT)
            self._check_unseen(column, values, frame, i)
            made.append(coded.inputs(values))
        return np.ascontiguousarray(np.hstack(made))

    def _check_unseen(self, column: Column, values: Floats, frame: Frame, i: int) -> None:
        """Log, or refuse, new rows with a category that no training row has."""
        if column.kind != "category" or not (values == UNSEEN).any():
            return
        row = int((values == UNSEEN).argmax())
        known = ", ".join(map(repr, column.texts[:8])) + (", ..." if len(column.texts) > 8 else "")
        found = (
            f"{frame.place(row, i)}: found {frame.columns[i][row]!r}, which no training row has "
            f"(these have {known}; rows like this: {int((values == UNSEEN).sum())})"
        )
        if self.unseen == "refuse":
            raise DataError(f"{found}; remove these rows, or train with unseen=apart")
        logger.warning("%s; it is treated as equally different from all known ones", found)

    def state(self) -> dict[str, Any]:
        """State as plain data: texts, numbers, lists and dicts of them."""
        return {
            "missing": self.missing,
            "unseen": self.unseen,
            "identifier": self.identifier,
            "noise": list(self.noise),
            "columns": [
                {
                    "name": coded.column.name,
                    "kind": coded.column.kind,
                    "texts": list(coded.column.texts),
                    "form": coded.column.form,
                    "fill": list(coded.fill),
                    "indicator": coded.indicator,
                    "stand_ins": list(coded.stand_ins),
                }
                for coded in self.columns
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Coding:
        """The coding of a ``state``; raises ValueError, TypeError or KeyError if it is invalid."""
        columns = []
        for kept in state["columns"]:
            texts, fill = tuple(kept["texts"]), tuple(map(float, kept["fill"]))
            name, kind, form = kept["name"], kept["kind"], kept["form"]
            plain = isinstance(name, str) and isinstance(form, (str, type(None)))
            if (
                not plain
                or kind not in get_args(Kind)
                or not all(isinstance(t, str) for t in texts)
            ):
                raise ValueError(f"{kept} does not describe a column of a table")
            width = len(texts) if kind == "category" else 1
            if width == 0 or len(fill) not in (0, width) or not np.isfinite(fill).all():
                raise ValueError(f"the column {name!r} has {len(fill)} values to fill in")
            indicator = kept["indicator"] is True
            # absent in early versions
            several = tuple(map(float, kept.get("stand_ins", ())))
            allowed = np.isfinite(several) if kind != "category" else np.isin(several, range(width))
            if several and not (indicator and len(several) == STAND_INS and allowed.all()):
                raise ValueError(f"the column {name!r} has invalid stand-ins {several}")
            columns.append(CodedColumn(Column(name, kind, texts, form), fill, indicator, several))
        identifier, noise = state["identifier"], state["noise"]
        # of early versions: one name, or None
        noise = [] if noise is None else [noise] if isinstance(noise, str) else noise
        named = isinstance(identifier, (str, type(None))) and isinstance(noise, list)
        if not named or not all(isinstance(name, str) for name in noise):
            raise ValueError(f"{identifier} and {noise} are not names of columns")
        missing, unseen = state["missing"], state["unseen"]
        return cls(tuple(columns), missing, unseen, identifier, tuple(noise))
