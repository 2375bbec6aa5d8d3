"""Tables: named numbers of a data set, before they are split and standardised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpx.data.columns.coding import Coding
from gpx.data.columns.numbers import Floats, Mask
from gpx.errors import DataError


@dataclass(frozen=True)
class Table:
    """Inputs and targets in the data's own units.

    Attributes:
        name: of the data set.
        x (n, d): inputs.
        y (n,), or (n, p) for p > 1 outputs: targets, including class labels and counts. Some of
            several targets may be missing (NaN), but not all targets of a row.
        input_names: d names.
        target_name: name of the target; for several targets, one name for all of them.
        target_names: for several outputs, p different names; otherwise empty.
        class_names: for a target of texts, the texts in ascending order, and y holds their indices;
            otherwise empty.
        noise (n,), or (n, p): known noise variance of each target, in its squared unit; None:
            unknown. With several targets (n,) is that of all of them.
        weights (n,): number of observations that each row stands for; None: one.
        target_transform: name of the transform through which targets are modelled; None: none.
        coding: how inputs are computed from the columns of x, not fitted yet. x then holds indices
            of categories, days, and NaN for missing values. None: the columns are the inputs.
        test_masks (n, k): column s marks the test rows of split s; None if none are published.
        notes: peculiarities that a reader of results must know (leaks, repeats, caps).
        origin: file or generator of the numbers, for error messages.
        checksums: SHA-256 by file name, for the record of a run.
        input_unit: number that all inputs are divided by instead of standardising them (pixels that
            are rarely non-zero would become very large); None: inputs are standardised.
        labels: indices of columns of x that are never scaled (numbers of outputs on a grid, or of
            tasks).

    Raises:
        DataError: shapes do not agree, there are no rows or no inputs, or a value is not finite.
    """

    name: str
    x: Floats
    y: Floats
    input_names: tuple[str, ...]
    target_name: str
    test_masks: Mask | None = None
    notes: str = ""
    origin: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    input_unit: float | None = None
    labels: tuple[int, ...] = ()
    target_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    coding: Coding | None = None
    target_transform: str | None = None
    noise: Floats | None = None
    weights: Floats | None = None

    def __post_init__(self) -> None:
        outputs = self.y.shape[1:]  # (n, 1) would broadcast against (n,) to n x n
        if (
            self.x.ndim != 2
            or self.y.ndim not in (1, 2)
            or len(self.x) != len(self.y)
            or outputs == (1,)
        ):
            raise DataError(
                f"{self.where} has inputs of shape {self.x.shape} and a target of shape "
                f"{self.y.shape}; expected (n, d) and (n,), or (n, p) for p > 1 targets, with the "
                "same n"
            )
        if (len(self.target_names),) != (outputs or (0,)):
            raise DataError(
                f"{self.where} has targets of shape {self.y.shape} and {len(self.target_names)} "
                "target names; expected a name for each of several targets"
            )
        for name in self.target_names:
            if self.target_names.count(name) > 1:
                raise DataError(f"{self.where} has two targets named {name!r}; rename one")
        rows, columns = self.x.shape
        if rows == 0 or columns == 0:
            raise DataError(
                f"{self.where} has {rows} rows and {columns} inputs; expected at least one of each"
            )
        if len(self.input_names) != columns:
            raise DataError(
                f"{self.where} has {columns} inputs but {len(self.input_names)} input names"
            )
        if self.test_masks is not None and self.test_masks.shape[0] != rows:
            raise DataError(
                f"{self.where} has {rows} rows but its test mask has {self.test_masks.shape[0]}; "
                "the two files do not belong together, fetch both again"
            )
        self._check_finite()

    @property
    def where(self) -> str:
        """The file or generator, or the name if neither is known."""
        return self.origin or f"data set {self.name}"

    def _check_finite(self) -> None:
        bad_x = ~np.isfinite(self.x) if self.coding is None else np.isinf(self.x)
        bad_y = np.isinf(self.y) if self.target_names else ~np.isfinite(self.y)
        if self.target_names:  # a row without any target is useless
            bad_y |= np.isnan(self.y).all(axis=1, keepdims=True)
        if not (bad_x.any() or bad_y.any()):
            return
        row = int(np.flatnonzero(bad_x.any(axis=1) | bad_y.reshape(len(bad_y), -1).any(axis=1))[0])
        if bad_x[row].any():
            column = int(np.flatnonzero(bad_x[row])[0])
            name, value = self.input_names[column], self.x[row, column]
            place = f"column {column + 1} ({name!r})"
        else:
            column = int(np.flatnonzero(bad_y[row])[0])
            named = (self.target_names or (self.target_name,))[column]
            value, place = np.atleast_1d(self.y[row])[column], f"the target ({named!r})"
        count = int(bad_x.sum() + bad_y.sum())
        raise DataError(
            f"{self.where}, data row {row + 1}, {place}: found {value}, expected a finite number "
            f"({count} such value{'s' if count > 1 else ''} in all); "
            "remove these rows or fill them in first"
        )
