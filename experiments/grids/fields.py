"""Filling gaps in maps: an elevation tile and yearly precipitation of the world.

    python experiments/grids/fields.py            # three minutes on one core
    python experiments/grids/fields.py --quick    # a quarter of the tile, nothing written

Half of the elevation tile's cells are held out at random (344 x 403, Evans thesis, section 3.5, has
such images; reference error by an independent implementation of the same model). Precipitation: 10
years by 144 longitudes by 72 latitudes, 2.3 % never observed; a fifth of the rest and one block are
held out. Writes fields_*.json, elevation.png, precipitation.png and RESULTS.md beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from fit import fit, lengthscales, rmse
from matplotlib.figure import Figure
from record import argument_parser, write
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from torch import Tensor

from gpx.data.grids.file import ExtraGrid
from gpx.data.sets.extra import ExtraTable
from gpx.kernels import AxisProduct
from gpx.kernels.algebra import Product
from gpx.kernels.base import Kernel
from gpx.kernels.periodic import Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GapOptions, GridGP

HERE = Path(__file__).resolve().parent
REFERENCE = {"RMSE": 6.13, "steps": 51, "limit": 6.5}
BLOCK = (slice(None), slice(20, 32), slice(50, 60))
"""Precipitation: longitudes 51 to 79 east, latitudes 36 to 59 north."""


def learn(kernel: Kernel, noise: float, x: Tensor, y: Tensor, evaluations: int) -> Any:
    """A fitted posterior by filling the gaps."""
    model = GridGP(
        kernel=kernel, mean=Zero(), likelihood=Gaussian(noise), solver=GapOptions("fill")
    ).double()
    return fit(model, x, y, evaluations)


def elevation(quick: bool) -> None:
    """Half of the tile from the other half."""
    heights = ExtraGrid("dem_jacksboro").grid().values
    if quick:
        heights = np.ascontiguousarray(heights[::2, ::2])
    rows, columns = heights.shape
    cells = torch.cartesian_prod(
        *(torch.arange(m, dtype=torch.float64) / 100.0 for m in heights.shape)
    )
    truth = torch.from_numpy(heights.ravel())
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(rows * columns, dtype=torch.bool)
    seen[order[: rows * columns // 2]] = True
    shift, scale = truth[seen].mean(), truth[seen].std()
    kernel = AxisProduct("matern32", 2, lengthscale=0.06, outputscale=0.2)
    fitted = learn(kernel, 1e-3, cells[seen], (truth[seen] - shift) / scale, 15 if quick else 40)
    filled = shift + scale * fitted.posterior.predict_mean(cells)
    variance = fitted.posterior.predict(cells[~seen][::40]).variance
    spread = scale * (variance + fitted.posterior.likelihood.noise_variance).sqrt()
    wrong = (filled - truth)[~seen][::40].abs()
    inside = float((wrong <= 1.96 * spread).double().mean())
    near = NearestNDInterpolator(cells[seen].numpy(), truth[seen].numpy())
    linear = LinearNDInterpolator(cells[seen].numpy(), truth[seen].numpy())
    guess = torch.from_numpy(linear(cells.numpy()))
    nearest = torch.from_numpy(near(cells.numpy()))
    guess = torch.where(guess.isnan(), nearest, guess)
    error = rmse(filled[~seen], truth[~seen])
    ours: dict[str, Any] = {
        "method": "grid GP, fill",
        "RMSE, m": error,
        "inside 95 %": inside,
        "steps of the last solve": fitted.posterior.report.iterations,
        "evaluations": fitted.evaluations,
        "processor seconds": fitted.seconds,
        "reference RMSE": None if quick else REFERENCE["RMSE"],
        "reference steps": None if quick else REFERENCE["steps"],
    }
    table = [ours]
    for name, other in (("linear interpolation", guess), ("nearest neighbour", nearest)):
        table.append(
            dict.fromkeys(ours) | {"method": name, "RMSE, m": rmse(other[~seen], truth[~seen])}
        )
    scales = lengthscales(kernel)
    checks = {
        "the grid GP has a lower RMSE than linear interpolation": error < table[1]["RMSE, m"],
        "between 90 % and 99 % of the held-out cells lie inside their 95 % intervals": 0.9
        < inside
        < 0.99,
    }
    if not quick:
        checks[f"RMSE of the grid GP at most {REFERENCE['limit']} m"] = error <= REFERENCE["limit"]
    write(
        None if quick else HERE,
        "fields_elevation",
        f"Elevation: {rows} x {columns} cells, half of them held out at random",
        [
            "Product of two Matern 3/2; noise, lengthscales and outputscale by evidence (Nystrom "
            "log-determinant);",
            f"standard deviation of the terrain {float(truth.std(correction=0)):.1f} m; "
            f"lengthscales {scales[0]:.3f} and {scales[1]:.3f}",
            "in units of 100 cells. Reference: an independent implementation on the whole tile,",
            "170 evaluations in 74 s.",
        ],
        table,
        checks,
        pictures=["elevation.png"],
    )
    if quick:
        return
    shape = (rows, columns)
    before = np.ma.array(truth.reshape(shape).numpy(), mask=~seen.reshape(shape).numpy())
    maps = [("truth", truth), ("filled", filled)]
    draw(
        "elevation.png",
        before,
        [(name, field.reshape(shape).numpy()) for name, field in maps],
        np.ma.array((filled - truth).reshape(shape).numpy(), mask=seen.reshape(shape).numpy()),
        "m",
        20.0,
        "gist_earth",
    )


def precipitation(quick: bool) -> None:
    """Years by longitude by latitude: single cells and one block."""
    table = ExtraTable("precip").table()
    axes = [np.unique(c) for c in table.x.T]
    index = tuple(np.searchsorted(a, c) for a, c in zip(axes, table.x.T, strict=True))
    values = np.full([len(a) for a in axes], np.nan)
    values[index] = table.y
    known = ~np.isnan(values)
    random = np.random.default_rng(0)
    scattered = known & (random.random(values.shape) < 0.2)
    block = np.zeros_like(known)
    block[BLOCK] = known[BLOCK]
    block[:5] = False  # one half of the years
    seen = torch.from_numpy((known & ~scattered & ~block).ravel())
    # scales: a year and 10 degrees; longitude stays in degrees, as its kernel's period is
    points = [torch.from_numpy(a) for a in axes]
    cells = torch.cartesian_prod(points[0] - points[0].mean(), points[1], points[2] / 10.0)
    truth = torch.from_numpy(values.ravel())
    shift, scale = truth[seen].mean(), truth[seen].std()
    around = Periodic(lengthscale=0.3, outputscale=None, active_dims=[1], period=360.0)
    around.parametrizations["period"].original.requires_grad_(False)
    kernel = Product(
        [
            AxisProduct("matern12", 3, axes=[[0], [2]], lengthscale=[5.0, 1.0, 1.0]),
            around,
        ]
    )
    fitted = learn(kernel, 0.1, cells[seen], (truth[seen] - shift) / scale, 6 if quick else 25)
    filled = shift + scale * fitted.posterior.predict_mean(cells)
    sums = np.where(seen.numpy().reshape(values.shape), values, 0.0).sum(0)
    count = seen.numpy().reshape(values.shape).sum(0)
    mean = np.where(count > 0, sums / np.maximum(count, 1), float(shift))
    climate = torch.from_numpy(np.broadcast_to(mean, values.shape).ravel().copy())
    rows = []
    for name, field in (("grid GP, fill", filled), ("mean of the seen years", climate)):
        row: dict[str, Any] = {"method": name}
        for kind, where in (("scattered", scattered & ~block), ("block", block)):
            chosen = torch.from_numpy(where.ravel())
            row[f"RMSE, {kind}"] = rmse(field[chosen], truth[chosen])
        rows.append(row)
    rows[0] |= {
        "steps of the last solve": fitted.posterior.report.iterations,
        "evaluations": fitted.evaluations,
        "processor seconds": fitted.seconds,
    }
    rows[1] |= dict.fromkeys(list(rows[0])[3:])
    write(
        None if quick else HERE,
        "fields_precipitation",
        "Precipitation: " + " x ".join(map(str, values.shape)) + " cells",
        [
            f"{1 - known.mean():.1%} of the cells were never observed; held out: a fifth at",
            "random, and five years of a block of 12 longitudes by 10 latitudes. Matern 1/2 over",
            "years and latitude, periodic longitude; RMSE in the units of the data. Nothing is "
            "published.",
        ],
        rows,
        {
            "the grid GP has a lower RMSE than the mean over the years, scattered cells": rows[0][
                "RMSE, scattered"
            ]
            < rows[1]["RMSE, scattered"],
        },
        pictures=["precipitation.png"],
    )
    if quick:
        return
    year = 7
    holds = seen.numpy().reshape(values.shape)[year]

    def map_of(field: Tensor) -> np.ndarray:
        return field.reshape(values.shape)[year].numpy().T

    error = np.ma.array(map_of(filled - truth), mask=~((scattered | block)[year].T))
    draw(
        "precipitation.png",
        np.ma.array(map_of(truth), mask=~holds.T),
        [("truth", np.ma.masked_invalid(map_of(truth))), ("filled", map_of(filled))],
        error,
        "data's own scale",
        1.0,
        "viridis",
        high=2.0,
    )


def draw(
    name: str,
    before: np.ndarray,
    maps: list[tuple[str, np.ndarray]],
    error: np.ndarray,
    unit: str,
    reach: float,
    colours: str,
    high: float | None = None,
) -> None:
    """Before, truth, after, and the error where cells were held out."""
    figure = Figure(figsize=(11.0, 6.2), layout="constrained")
    axes = figure.subplots(2, 2)
    low = float(np.nanmin(maps[0][1]))
    top = float(np.nanmax(maps[0][1])) if high is None else high
    for axis, (title, field) in zip(axes.flat, [("what is given", before), *maps], strict=False):
        shown = axis.imshow(field, origin="lower", vmin=low, vmax=top, cmap=colours, aspect="auto")
        axis.set_title(title, fontsize=9)
        figure.colorbar(shown, ax=axis, label=unit)
    shown = axes[1, 1].imshow(
        error, origin="lower", vmin=-reach, vmax=reach, cmap="RdBu", aspect="auto"
    )
    axes[1, 1].set_title("filled less truth, at held-out cells", fontsize=9)
    figure.colorbar(shown, ax=axes[1, 1], label=unit)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(HERE / name, dpi=80)


def main() -> None:
    quick = argument_parser(__doc__, quick="smaller sizes").parse_args().quick
    elevation(quick)
    precipitation(quick)


if __name__ == "__main__":
    main()
