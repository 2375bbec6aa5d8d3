"""Values on a Cartesian grid with gaps, and the table of observed cells."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gpx.data.columns.numbers import Floats
from gpx.data.source import DataSource, Rows
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError
from gpx.linalg.memory import available_memory
from gpx.tensor_checks import check_one_of

HOLD_OUT = ("cells", "slices", "tail", "mask")

MAX_CELLS = 2**31
"""Most cells of a grid."""

TABLE_COPIES = 3
"""Number of copies of the table in memory while it is built, split and standardised."""


@dataclass(frozen=True)
class GridValues:
    """Values on the Cartesian product of axes.

    Attributes:
        name: of the data set.
        axes: for each axis its points (m_l,), or (m_l, d_l) for points in d_l dimensions.
        axis_names: for each axis the names of its d_l columns.
        values (m_1, ..., m_d): NaN in gaps.
        value_name: name of the values.
        origin: file or generator, for messages.
        test (m_1, ..., m_d): cells to test on, if the data specify them.
        notes, checksums: as in ``Table``.
        labels: indices of axes that are not scaled (numbers of outputs).

    Raises:
        DataError: an axis that is not sorted, has duplicates or is not finite, shapes that do not
            match, no observed cell, or infinite values.
    """

    name: str
    axes: tuple[Floats, ...]
    axis_names: tuple[tuple[str, ...], ...]
    values: Floats
    value_name: str = "value"
    origin: str = ""
    test: NDArray[np.bool_] | None = None
    notes: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.values.ndim:
            raise DataError(f"{self.origin}: the values are a single number, expected a grid")
        sizes = tuple(len(a) for a in self.axes)
        if self.values.shape != sizes:
            raise DataError(
                f"{self.origin}: the values have shape {self.values.shape}, the axes "
                f"{' x '.join(map(str, sizes))} points; expected one value per cell, axes in the "
                "order of the values' dimensions"
            )
        for axis, names in zip(self.axes, self.axis_names, strict=True):
            _check_axis(axis, names, self.origin)
        if self.test is not None and self.test.shape != sizes:
            raise DataError(
                f"{self.origin}: the test mask has shape {self.test.shape}, expected {sizes}"
            )
        if np.isinf(self.values).any():
            raise DataError(
                f"{self.origin}: {int(np.isinf(self.values).sum())} values are infinite; write NaN "
                "for gaps"
            )
        if not self.observed.any():
            raise DataError(
                f"{self.origin}: all {self.values.size:,} cells are gaps; expected observed cells "
                "(is the mask inverted? true means observed)"
            )

    @property
    def observed(self) -> NDArray[np.bool_]:
        """Mask of the cells that hold a value."""
        return ~np.isnan(self.values)

    def cells(self) -> Rows:
        """Flat indices of the observed cells, ascending."""
        return np.flatnonzero(self.observed.ravel()).astype(np.int64)

    def table(self) -> Table:
        """The table with a row for each observed cell, in the order of the grid."""
        width = sum(map(len, self.axis_names))
        require_table_memory(self.values.shape, width, int(self.observed.sum()), self.origin)
        cells = self.cells()
        parts = np.unravel_index(cells, self.values.shape)
        columns = [_as_columns(axis)[index] for axis, index in zip(self.axes, parts, strict=True)]
        widths = np.cumsum([0] + [c.shape[1] for c in columns])
        return Table(
            name=self.name,
            x=np.ascontiguousarray(np.concatenate(columns, axis=1)),
            y=self.values.ravel()[cells],
            input_names=tuple(n for names in self.axis_names for n in names),
            target_name=self.value_name,
            notes=self.notes,
            origin=self.origin,
            checksums=self.checksums,
            labels=tuple(int(widths[axis]) for axis in self.labels),
        )


def require_table_memory(
    shape: Sequence[int], width: int, rows: int, origin: str, *, drawn: bool = False
) -> None:
    """Raise ConfigError if the table of a grid would not fit into memory.

    Args:
        shape: of the grid.
        width: number of input columns.
        rows: number of observed cells.
        origin: file or generator, for the message.
        drawn: whether values and gaps are still to be drawn, which takes two arrays of the grid.

    Raises:
        ConfigError: see above.
    """
    cells = math.prod(shape)
    needed = 8 * (TABLE_COPIES * (width + 1) * rows + (2 * cells if drawn else 0))
    free = available_memory(torch.device("cpu"))
    if cells <= MAX_CELLS and (free is None or needed <= free):
        return
    sizes = " x ".join(f"{m:,}" for m in shape)
    raise ConfigError(
        f"{origin}: {sizes} = {cells:,} cells, {rows:,} of them observed, need a table of "
        f"{needed / 2**30:,.1f} GiB; the limit is {MAX_CELLS:,} cells"
        + ("" if free is None else f" and {free / 2**30:,.1f} GiB of free memory")
        + ": thin or shorten an axis"
    )


def _as_columns(axis: Floats) -> Floats:
    return axis[:, None] if axis.ndim == 1 else axis


def _check_axis(axis: Floats, names: Sequence[str], origin: str) -> None:
    called = f"axis {', '.join(names)}"
    if axis.ndim not in (1, 2) or _as_columns(axis).shape[1] != len(names):
        raise DataError(
            f"{origin}: {called} has shape {axis.shape}; expected (m,), or (m, d) for points in d "
            "dimensions"
        )
    if not np.isfinite(axis).all():
        raise DataError(f"{origin}: {called} has points that are not finite")
    if axis.ndim == 2:
        distinct = len(np.unique(axis, axis=0))
        if distinct < len(axis):
            raise DataError(
                f"{origin}: {called} has {len(axis) - distinct} duplicate points; merge or move "
                "them"
            )
        return
    steps = np.diff(axis)
    if (steps == 0).any():
        raise DataError(
            f"{origin}: {called} has the point {axis[:-1][steps == 0][0]:g} twice; merge the two "
            "slices"
        )
    if not ((steps > 0).all() or (steps < 0).all()):
        sign = 1.0 if axis[-1] > axis[0] else -1.0
        at = int(np.flatnonzero(steps * sign < 0)[0])
        raise DataError(
            f"{origin}: {called} is not sorted: {axis[at]:g} is followed by {axis[at + 1]:g}; sort "
            "it together with the values"
        )


class GridSource(DataSource):
    """A data set on a grid; a subclass writes ``grid``.

    Args:
        hold_out: which observed cells to test on: "cells" (a random share), "slices" (random points
            of one axis, such as stations or frames), "tail" (the end of one axis: a forecast) or
            "mask" (those marked in the data).
        hold_out_axis: number of the axis for "slices" and "tail", from 0.
        axes: groups of input columns that together form an axis, for the model; None: those of the
            grid.
        split, test_fraction, root, split_seed: as for every source.

    Raises:
        ConfigError: an unknown ``hold_out``.
    """

    form = "grid"
    needs_test = True

    def __init__(
        self,
        hold_out: str = "cells",
        hold_out_axis: int = 0,
        axes: Sequence[Sequence[int]] | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_one_of(HOLD_OUT, hold_out=hold_out)
        self.hold_out = hold_out
        self.hold_out_axis = hold_out_axis
        self.axes = axes
        self._grid: GridValues | None = None

    @abstractmethod
    def grid(self) -> GridValues:
        """The grid in the data's own units; raises DataError if it is missing or malformed."""

    def table(self) -> Table:
        """The table of observed cells; each of several outputs is standardised by its training
        rows.

        Predictions of several outputs are in these units; the notes give the conversion.
        """
        self._grid = self.grid()
        table, units = self._grid.table(), list[str]()
        for axis in self._grid.labels:
            train, _ = self.split_rows(table)
            index = np.unravel_index(self._grid.cells(), self._grid.values.shape)[axis]
            for output in np.unique(index):
                rows = index == output
                seen = table.y[train[rows[train]]]
                if not len(seen):
                    raise DataError(
                        f"{table.where}: output {output} has no training cell; hold out other cells"
                    )
                mean, scale = seen.mean(), seen.std() or 1.0
                table.y[rows] -= mean
                table.y[rows] /= scale
                units.append(f"output {output} is (value - {mean:.7g}) / {scale:.7g}")
        return replace(table, notes="; ".join(filter(None, [table.notes, *units])))

    def split_rows(self, table: Table) -> tuple[Rows, Rows]:
        """As in ``DataSource``, depending on ``hold_out``."""
        if self.hold_out == "cells":
            return super().split_rows(table)
        assert self._grid is not None
        cells, shape = self._grid.cells(), self._grid.values.shape
        if self.hold_out == "mask":
            if self._grid.test is None:
                raise DataError(f"{table.where} marks no test cells; use hold_out=cells")
            if self.split:
                raise ConfigError(f"split={self.split}: hold_out=mask has only split 0")
            chosen = self._grid.test.ravel()[cells]
        else:
            chosen = self._slices(shape)[np.unravel_index(cells, shape)[self.hold_out_axis]]
        train, test = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        if len(train) < 2 or len(test) < 1:
            raise DataError(
                f"{table.where}: hold_out={self.hold_out} leaves {len(train)} training and "
                f"{len(test)} test cells; expected at least 2 and 1"
            )
        return train.astype(np.int64), test.astype(np.int64)

    def _slices(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Mask of the points of the axis that are tested."""
        if not 0 <= self.hold_out_axis < len(shape):
            raise ConfigError(
                f"hold_out_axis={self.hold_out_axis}: the grid has axes 0 to {len(shape) - 1}"
            )
        points = shape[self.hold_out_axis]
        chosen = np.zeros(points, dtype=bool)
        if self.hold_out == "tail":
            if self.split:
                raise ConfigError(f"split={self.split}: hold_out=tail has only split 0")
            chosen[points - max(1, math.ceil(self.test_fraction * points)) :] = True
            return chosen
        folds = self._num_folds
        if not 0 <= self.split < folds or points < folds:
            raise ConfigError(
                f"split={self.split} of {folds} over {points} points of axis "
                f"{self.hold_out_axis} does not exist; change split= or test_fraction="
            )
        chosen[self._drawn_fold(points)] = True
        return chosen
