"""Products of functions of one input each, every function from a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.bases.closed_forms import AxisProducts
from gpx.errors import ConfigError
from gpx.runs.exporting.int4.forms import FULL, Features, divided, interpolated

CELL_COUNTS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Sizes of tables; the smallest one within ``INTERPOLATION_ERROR`` is used."""

INTERPOLATION_ERROR = 2.0**-13
"""Largest error of linear interpolation, relative to the largest value of the function."""

UNIT_FRACTION = 65536
"""Integer that represents a whole cell in interpolation."""

UNIT = """\
static int gpx_unit(const float *standard, int j)
{
    int i, found = 32767;

    for (i = 0; i < GPX_INPUTS; i++) {
        const short *row = gpx_tables + (int)gpx_rows[j * GPX_INPUTS + i] * (GPX_CELLS + 1);
        float at = (standard[i] - gpx_low[i]) * gpx_cells[i];
        int place, part;
        at = at > 0.0f ? at : 0.0f;
        at = at < (float)GPX_CELLS ? at : (float)GPX_CELLS;
        place = (int)at < GPX_CELLS ? (int)at : GPX_CELLS - 1;
        part = (int)((at - (float)place) * 65536.0f);
        found = found * ((row[place] * (65536 - part) + row[place + 1] * part) / 65536) / 32767;
    }
    return found;
}
"""


@dataclasses.dataclass(frozen=True)
class AxisFeatures(Features):
    """prod_i g_i(x_i), each factor to 2^-13 of its largest value; constant beyond its table.

    Attributes:
        tables (R, cells + 1): values of the functions at even steps, integers up to 32767.
        rows (k, d): index of the table of every factor.
        low (d,), cells (d,): start of the tables, and cells per unit of standardised input.
    """

    tables: NDArray[np.int16]
    rows: NDArray[np.uint16]
    low: NDArray[np.float32]
    cells: NDArray[np.float32]
    types: ClassVar[Mapping[str, str]] = {
        "tables": "short",
        "rows": "unsigned short",
        "low": "float",
        "cells": "float",
    }

    @classmethod
    def of(
        cls,
        form: AxisProducts,
        peaks: Tensor,
        scale: NDArray[np.float32],
        factor: NDArray[np.int16],
    ) -> AxisFeatures:
        """Tables of all functions that occur in a product, relative to their largest values.

        Args:
            form: the products.
            peaks (d, c): largest values, from ``peaks_of``.
            scale, factor: of ``Features``.

        Raises:
            ConfigError: a function varies too quickly for the largest table.
        """
        inputs = form.which.shape[1]
        pairs = form.which + len(peaks[0]) * torch.arange(inputs)
        wanted, rows = pairs.unique(return_inverse=True)
        axis, number = wanted // len(peaks[0]), wanted % len(peaks[0])
        for cells in CELL_COUNTS:
            values = _on_grid(form, 2 * cells + 1)[axis, number] / peaks[axis, number].unsqueeze(1)
            middle = 0.5 * (values[:, :-2:2] + values[:, 2::2])
            error = float((values[:, 1::2] - middle).abs().max()) if len(wanted) else 0.0
            if error <= INTERPOLATION_ERROR:
                break
        else:
            raise ConfigError(
                f"format=int4: tables of {CELL_COUNTS[-1]} cells have an error of {error:.1e}, as "
                "basis functions vary too quickly; use longer lengthscales or fewer functions"
            )
        tables = (FULL * values[:, ::2]).round().short().numpy()
        per_unit = cells / (form.high - form.low)
        return cls(
            scale,
            factor,
            tables,
            rows.numpy().astype(np.uint16),
            form.low.float().numpy(),
            per_unit.float().numpy(),
        )

    def unit(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """As in ``Features``."""
        count = self.tables.shape[1] - 1
        found = np.full((len(x), len(self.rows)), FULL, dtype=np.int64)
        for column, rows in enumerate(self.rows.T):
            at = (x[:, column] - self.low[column]) * self.cells[column]
            at = np.clip(at, np.float32(0.0), np.float32(count))
            place = np.minimum(at.astype(np.int64), count - 1)
            part = ((at - place.astype(np.float32)) * np.float32(UNIT_FRACTION)).astype(np.int64)[
                :, None
            ]
            low, high = self.tables[rows][:, place].T, self.tables[rows][:, place + 1].T
            found = divided(found * interpolated(low, high, part, UNIT_FRACTION), FULL)
        return found

    def c_unit(self) -> str:
        """As in ``Features``."""
        return f"enum {{ GPX_CELLS = {self.tables.shape[1] - 1} }};\n\n{UNIT}"


def peaks_of(form: AxisProducts) -> Tensor:
    """Largest absolute values (d, c) of the functions of every axis, on a fine grid."""
    return (
        _on_grid(form, CELL_COUNTS[-1] + 1).abs().amax(2).clamp_min(torch.finfo(torch.float64).tiny)
    )


def _on_grid(form: AxisProducts, points: int) -> Tensor:
    """Values (d, c, points) of the functions of every axis at even steps."""
    steps = torch.linspace(0.0, 1.0, points, dtype=torch.float64).unsqueeze(1)
    return form.functions(form.low + (form.high - form.low) * steps)
