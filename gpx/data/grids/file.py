"""Grids in NumPy archives: the user's own, and those of the ``extra`` folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpx.data.archive import read_array
from gpx.data.columns.numbers import Floats
from gpx.data.folders import checksums, existing_file, extra_file, under
from gpx.data.grids.values import GridSource, GridValues
from gpx.errors import ConfigError, DataError


class GridFile(GridSource):
    """A NumPy archive with values on a grid and its axes; gaps are NaN or given by a mask.

    Args:
        path: of the .npz file.
        values: name of the array of values (m_1, ..., m_d); or several names, for several outputs
            on the same grid, which become its last axis.
        axis_arrays: names of the arrays of axis points, (m_l,) or (m_l, d_l), in order; None:
            axis0, axis1, ...
        mask: name of an array of flags, true for observed cells; None: gaps are NaN.
        test: name of an array of flags, true for test cells, with data.hold_out=mask.
        hold_out, hold_out_axis, axes, split, test_fraction, root, split_seed: see ``GridSource``;
            ``path`` is relative to ``root`` if that is given.
    """

    def __init__(
        self,
        path: str,
        values: str | Sequence[str] = "values",
        axis_arrays: Sequence[str] | None = None,
        mask: str | None = None,
        test: str | None = None,
        hold_out: str = "cells",
        hold_out_axis: int = 0,
        axes: Sequence[Sequence[int]] | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(hold_out, hold_out_axis, axes, split, test_fraction, root, split_seed)
        self.path = path
        self.values = values
        self.axis_arrays = axis_arrays
        self.mask = mask
        self.test = test

    def grid(self) -> GridValues:
        """Read the archive.

        Raises:
            DataError: no such file or array, or see ``GridValues``.
        """
        path = existing_file(under(self.root, self.path))
        names = [self.values] if isinstance(self.values, str) else list(self.values)
        if not names:
            raise DataError("values=[]: expected the name of an array, or names of several")
        arrays = [read_array(path, name, "values") for name in names]
        axes = _axes(path, self.axis_arrays, arrays[0].ndim)
        mask = None if self.mask is None else _flags(path, self.mask, "mask")
        test = None if self.test is None else _flags(path, self.test, "test")
        return assemble(
            name=path.stem,
            axes=axes,
            arrays=dict(zip(names, arrays, strict=True)),
            mask=mask,
            test=test,
            origin=str(path),
            checksums=checksums([path]),
        )


def _flags(path: Path, name: str, option: str) -> NDArray[np.bool_]:
    """An array of flags: 0 for false, and a single other value (1, 255) for true."""
    array = read_array(path, name, option)
    found = array != 0.0
    marks = array[found]
    if not (marks == marks[:1]).all():  # NaN fails
        raise DataError(
            f"{path}: array {name!r} is not a mask: besides 0 it holds values from {marks.min():g} "
            f"to {marks.max():g}; expected flags, true for "
            f"{'test cells' if option == 'test' else 'observed cells'}"
        )
    return found


def _axes(path: Path, names: Sequence[str] | None, count: int) -> dict[str, Floats]:
    wanted = [f"axis{i}" for i in range(count)] if names is None else list(names)
    if len(wanted) != count:
        raise DataError(
            f"{path}: axis_arrays={wanted} names {len(wanted)} axes and the values have {count} "
            "dimensions"
        )
    return {name: read_array(path, name, "axis_arrays") for name in wanted}


def assemble(
    *,
    name: str,
    axes: dict[str, Floats],
    arrays: dict[str, Floats],
    mask: np.ndarray | None = None,
    test: np.ndarray | None = None,
    origin: str,
    checksums: dict[str, str],
) -> GridValues:
    """Grid values with NaN in the gaps; several arrays become outputs along a last axis.

    Raises:
        DataError: arrays, mask or test flags of different shapes, or a cell that is NaN and
            observed by the mask; see also ``GridValues``.
    """
    first = next(iter(arrays.values()))
    flags = {} if mask is None else {"the mask": mask}
    flags |= {} if test is None else {"the test mask": test}
    for what, array in {**arrays, **flags}.items():
        if array.shape != first.shape:
            raise DataError(
                f"{origin}: {what} has shape {array.shape} and the values {first.shape}; expected "
                "the same"
            )
    if mask is not None:
        for what, array in arrays.items():
            missing = np.isnan(array) & mask
            if missing.any():
                place = ", ".join(map(str, np.argwhere(missing)[0]))
                raise DataError(
                    f"{origin}: {int(missing.sum())} cells of {what} are NaN but observed by the "
                    f"mask, the first at [{place}]; mark them as gaps (false), or leave mask= out, "
                    "as NaN marks gaps anyway"
                )
    names = tuple(
        (key,) if axis.ndim == 1 else tuple(f"{key}_{i}" for i in range(axis.shape[1]))
        for key, axis in axes.items()
    )
    points = tuple(axes.values())
    labels: tuple[int, ...] = ()
    notes = ""
    if len(arrays) > 1:
        values = np.stack(list(arrays.values()), axis=-1)
        mask = None if mask is None else np.repeat(mask[..., None], len(arrays), axis=-1)
        test = None if test is None else np.repeat(test[..., None], len(arrays), axis=-1)
        points = (*points, np.arange(len(arrays), dtype=np.float64))
        names = (*names, ("output",))
        labels = (len(points) - 1,)
        outputs = ", ".join(f"{i} is {key}" for i, key in enumerate(arrays))
        notes = f"outputs, each standardised: {outputs}"
    else:
        values = first.copy()
    if mask is not None:
        values[~mask] = np.nan
    return GridValues(
        name=name,
        axes=points,
        axis_names=names,
        values=values,
        value_name=next(iter(arrays)) if len(arrays) == 1 else "output value",
        origin=origin,
        test=test,
        notes=notes,
        checksums=checksums,
        labels=labels,
    )


EXTRA_GRIDS = {
    "dem_jacksboro": (("axis0", "axis1"), ("values",)),
    "canadian_weather": (("lat_lon_w", "day"), ("temperature",)),
}
"""Names of the arrays of axes, and of the values that are modelled by default."""


class ExtraGrid(GridSource):
    """A grid of the ``extra`` folder (grid.npz); never downloaded.

    Args:
        name: "dem_jacksboro" (terrain height in metres, latitude by longitude, complete) or
            "canadian_weather" (35 stations at (latitude, longitude west) by day of the year,
            complete).
        values: names of arrays to model, several as outputs; None: heights, or the temperature.
        hold_out, hold_out_axis, axes, split, test_fraction, root, split_seed: see ``GridSource``.

    Raises:
        ConfigError: no such grid.
    """

    def __init__(
        self,
        name: str,
        values: Sequence[str] | None = None,
        hold_out: str = "cells",
        hold_out_axis: int = 0,
        axes: Sequence[Sequence[int]] | None = None,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(hold_out, hold_out_axis, axes, split, test_fraction, root, split_seed)
        if name not in EXTRA_GRIDS:
            raise ConfigError(f"there is no extra grid {name!r}; known: {', '.join(EXTRA_GRIDS)}")
        self.name = name
        self.values = values

    def grid(self) -> GridValues:
        """Read the archive.

        Raises:
            DataError: not found.
        """
        path = extra_file(self.root, self.name, "grid.npz")
        axes, values = EXTRA_GRIDS[self.name]
        wanted = values if self.values is None else self.values
        return assemble(
            name=self.name,
            axes={key: read_array(path, key, "values") for key in axes},
            arrays={key: read_array(path, key, "values") for key in wanted},
            origin=str(path),
            checksums=checksums([path]),
        )
