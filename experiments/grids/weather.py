"""Weather at stations by time: reconstruction of gaps and whole stations, and a forecast.

    python experiments/grids/weather.py            # a minute on one core
    python experiments/grids/weather.py --quick    # fewer evaluations, nothing written

Two tables in place of the Ontario records of Evans thesis, section 3.5.3, which are not public (see
also ``network``): real daily normals at 35 Canadian stations and real hourly temperatures at three
New York airports. Writes weather_*.json, weather.png and RESULTS.md beside this file.
"""

from __future__ import annotations

import math
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from fit import Fit, circle, fit, random_share, rmse, rough_circle
from matplotlib.figure import Figure
from record import argument_parser, write
from torch import Tensor

from gpx.data.grids.file import ExtraGrid
from gpx.data.sets.extra import ExtraTable
from gpx.kernels import AxisProduct, Kernel, Matern32, Matern52
from gpx.kernels.algebra import Product
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GapOptions, GridGP

HERE = Path(__file__).resolve().parent

DAYS = {
    "Matern 1/2 over the chord": rough_circle(2, 365.0, 0.5),
    "Matern 3/2 over the chord": rough_circle(2, 365.0, 0.5, Matern32),
    "Matern 5/2 over the chord": rough_circle(2, 365.0, 0.5, Matern52),
    "periodic (squared exponential of the chord)": circle(2, 365.0, 0.5),
}

# -- Canadian normals ------------------------------------------------------------------------------


def canada(quick: bool) -> dict[str, Any]:
    """Station x day x (temperature, log precipitation): cells at random, and whole stations."""
    source = ExtraGrid("canadian_weather", ["temperature", "log10_precipitation"]).grid()
    place, day, _ = source.axes
    shape = source.values.shape
    truth = torch.from_numpy(source.values.copy())
    whole = torch.zeros(shape, dtype=torch.bool)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(4))
    apart = order[:4]
    whole[apart] = True
    scattered = random_share(shape, 0.3, 5).reshape(shape) & ~whole
    seen = ~(whole | scattered)
    shift = torch.stack([truth[..., o][seen[..., o]].mean() for o in range(2)])
    scale = torch.stack([truth[..., o][seen[..., o]].std() for o in range(2)])
    target = (truth - shift) / scale
    where = torch.from_numpy((place - place.mean(0)) / 10.0)
    cells = torch.cartesian_prod(
        torch.arange(shape[0]).double(), torch.from_numpy(day).double(), torch.arange(2).double()
    )
    cells = torch.cat([where[cells[:, 0].long()], cells[:, 1:]], 1)
    evaluations = 12 if quick else 100

    def learn(
        chosen: Tensor,
        outputs: int,
        weights: Tensor | float = 1.0,
        season: Kernel = DAYS["Matern 1/2 over the chord"],
    ) -> tuple[Fit, Tensor]:
        """Fit to the seen ones of the chosen cells, times ``weights``; mean at all chosen cells.

        Targets over the noise's standard deviation have noise one: K x B + D, D diagonal over
        outputs, becomes K x (D^-1/2 B D^-1/2) + I, and B is free anyway.
        """
        columns, axes = (4, [[0, 1], [2], [3]]) if outputs == 2 else (3, [[0, 1], [2]])
        space = AxisProduct(["matern12"], columns, [[0, 1]], 3.0, None if outputs == 2 else 1.0)
        parts = [space, deepcopy(season)]
        parts += [Coregionalisation(2, [3], 0.3)] if outputs == 2 else []
        whitened = isinstance(weights, Tensor)
        model = GridGP(
            kernel=Product(parts),
            mean=Zero(),
            likelihood=Gaussian(1.0 if whitened else 0.02),
            axes=axes,
            solver=GapOptions("fill"),
        ).double()
        if whitened:
            with torch.no_grad():
                parts[-1].root.mul_(weights.mean())
        rows, known = cells[chosen][:, :columns], seen.reshape(-1)[chosen]
        y = (target * weights).reshape(-1)[chosen]
        fitted = fit(model, rows[known], y[known], evaluations)
        if whitened:  # the density of targets that are not whitened
            counts = seen.sum((0, 1))
            fitted = fitted._replace(
                evidence=fitted.evidence + float((counts * weights.log()).sum())
            )
        return fitted, fitted.posterior.predict_mean(rows)

    warm = cells[:, 3] == 0
    days = []
    for name, season in DAYS.items():
        fitted, found = learn(warm, 1, season=season)
        field = found.reshape(shape[:2]) * scale[0] + shift[0]
        days.append(
            {
                "factor over days": name,
                "evidence, nats": fitted.evidence,
                **{
                    f"RMSE temperature, C, {kind}": rmse(
                        field[chosen[..., 0]], truth[..., 0][chosen[..., 0]]
                    )
                    for kind, chosen in (("scattered", scattered), ("whole stations", whole))
                },
            }
        )
    alone = [learn(cells[:, 3] == o, 1) for o in range(2)]
    mean = torch.stack([m.reshape(shape[:2]) for _, m in alone], 2) * scale + shift
    every = torch.ones(len(cells), dtype=torch.bool)
    both, joint = learn(every, 2)
    together = joint.reshape(shape) * scale + shift
    noises = [f.posterior.likelihood.noise_variance.detach().reshape(()) for f, _ in alone]
    weights = torch.stack(noises).rsqrt()
    own, white = learn(every, 2, weights)
    apart_noise = white.reshape(shape) / weights * scale + shift
    distance = torch.cdist(where, where)
    distance[:, apart] = torch.inf
    distance.fill_diagonal_(torch.inf)
    nearest = truth[distance.argmin(1)]
    between = torch.full(shape, torch.nan, dtype=torch.float64)
    for s, o in torch.cartesian_prod(torch.arange(shape[0]), torch.arange(2)).tolist():
        if bool(seen[s, :, o].any()):
            between[s, :, o] = torch.from_numpy(
                _interpolated(truth[s, :, o].numpy(), seen[s, :, o].numpy())
            )
    rows = []
    methods = {
        "grid GP, each output alone": mean,
        "grid GP, both outputs, one noise": together,
        "grid GP, both outputs, noise of each": apart_noise,
        "nearest other station, same day": nearest,
        "interpolation over days": between,
    }
    for name, field in methods.items():
        row: dict[str, Any] = {"method": name}
        for o, label in enumerate(("temperature, C", "log10 precipitation")):
            for kind, chosen in (("scattered", scattered), ("whole stations", whole)):
                at = chosen[..., o]
                error = rmse(field[..., o][at], truth[..., o][at])
                row[f"RMSE {label}, {kind}"] = None if math.isnan(error) else error
        rows.append(row)
    fits = [[f for f, _ in alone], [both], [own]]
    for row, members in zip(rows, [*fits, [], []], strict=True):
        steps = [f.posterior.report.iterations for f in members]
        row["evidence, nats"] = sum(f.evidence for f in members) if members else None
        row["steps of the last solve"] = steps or None
        row["processor seconds"] = sum(f.seconds for f in members) if members else None
    temperature = [k for k in rows[0] if k.startswith("RMSE temperature")]
    scattered_errors = [k for k in rows[0] if k.endswith("scattered")]
    every_error = [k for k in rows[0] if k.startswith("RMSE")]
    station = int(apart[0])
    posterior = alone[0][0].posterior
    ours = cells[cells[:, 3] == 0][:, :3].reshape(*shape[:2], 3)[station, ::6]
    noisy = posterior.predict(ours).variance + posterior.likelihood.noise_variance
    deviation = scale[0] * noisy.sqrt()
    wrong = (mean - truth)[station, ::6, 0].abs()
    write(
        None if quick else HERE,
        "weather_canada",
        "Canadian normals: " + " x ".join(map(str, shape)) + " cells",
        [
            "Real: daily means at 35 stations; 30 % of the cells of 31 stations and four whole",
            "stations held out. Matern 1/2 over latitude and longitude of the stations; the kernel "
            "over",
            "days is the one of largest evidence. Both outputs coregionalised with one noise "
            "variance,",
            "or with one for each (targets divided by the noise standard deviations that the "
            "outputs",
            "have when trained alone, which keeps the Kronecker form), or each output alone; "
            "filling. Nothing",
            "is published for this set. Why one check fails: the two outputs have different noise",
            "variances, and the model with a single one is wrong by thousands of nats of evidence.",
        ],
        {"": rows, "Temperature alone, by the kernel over days": days},
        {
            "the grid GP with a noise variance for each output has a lower RMSE than the nearest "
            "other station everywhere": all(rows[2][k] < rows[3][k] for k in every_error),
            "it has a lower RMSE than interpolation over days at scattered cells, in both "
            "outputs": all(rows[2][k] < rows[4][k] for k in scattered_errors),
            "with one noise variance the grid GP has a lower RMSE than the nearest station in "
            "temperature": all(rows[1][k] < rows[3][k] for k in temperature),
            "Matern 1/2 over the chord has the largest evidence of the kernels over days": days[0][
                "evidence, nats"
            ]
            == max(row["evidence, nats"] for row in days),
            "each output alone has a lower RMSE than both baselines in temperature": all(
                rows[0][k] < rows[3][k] for k in temperature
            )
            and rows[0][temperature[0]] < rows[4][temperature[0]],
            "a noise variance for each output has a larger evidence than a single one": rows[2][
                "evidence, nats"
            ]
            > rows[1]["evidence, nats"],
            "the data of a held-out station lie within three standard deviations on 95 % of its "
            "days": float((wrong <= 3.0 * deviation).double().mean()) >= 0.95,
        },
    )
    return {
        "days": day,
        "truth": truth[station, :, 0],
        "mean": mean[station, :, 0],
        "at": day[::6],
        "deviation": deviation,
        "mean there": mean[station, ::6, 0],
        "nearest": nearest[station, :, 0],
    }


# -- New York hours --------------------------------------------------------------------------------


def new_york(quick: bool) -> dict[str, Any]:
    """Airport x day x hour: single hours, an outage of ten days, a forecast of a week."""
    table = ExtraTable("nyc_weather").table()
    assert table.test_masks is not None
    assert table.test_masks.ndim == 2
    hours = table.x[:, 1].astype(int)
    last = hours.max() // 24  # whole days
    first = last - 364
    keep = (hours >= 24 * first) & (hours < 24 * last)
    index = (table.x[keep, 0].astype(int), hours[keep] // 24 - first, hours[keep] % 24)
    shape = (3, last - first, 24)
    values = np.full(shape, np.nan)
    values[index] = table.y[keep]
    marked = np.zeros(shape, dtype=bool)
    marked[index] = table.test_masks[keep, 0]
    known = ~np.isnan(values)
    outage, ahead = np.zeros_like(known), np.zeros_like(known)
    middle = shape[1] // 2
    outage[1, middle : middle + 10] = True
    ahead[:, -7:] = True
    kinds = {"hours": marked & ~outage & ~ahead, "outage": outage, "forecast": ahead}
    kinds = {name: chosen & known for name, chosen in kinds.items()}
    seen = known & ~(marked | outage | ahead)
    truth, flat = torch.from_numpy(values.ravel()), torch.from_numpy(seen.ravel())
    cells = torch.cartesian_prod(*(torch.arange(m).double() for m in shape))
    # the season is a mean function: a year and its half by least squares
    angle = 2.0 * math.pi / 365.25 * cells[:, 1]
    waves = [torch.ones_like(angle), angle.cos(), angle.sin(), (2 * angle).cos()]
    design = torch.stack([*waves, (2 * angle).sin()], 1)
    season = design @ torch.linalg.lstsq(design[flat], truth[flat, None]).solution.squeeze(1)
    scale = (truth - season)[flat].std()
    kernel = Product(
        [
            Coregionalisation(3, [0], 0.8),
            AxisProduct(["matern12", "matern32"], 3, [[1], [2]], [1.0, 3.0, 10.0], None),
        ]
    )
    model = GridGP(
        kernel=kernel, mean=Zero(), likelihood=Gaussian(0.05), solver=GapOptions("fill")
    ).double()
    fitted = fit(model, cells[flat], ((truth - season) / scale)[flat], 12 if quick else 30)
    mean = (season + scale * fitted.posterior.predict_mean(cells)).reshape(shape).numpy()
    between = np.stack([_interpolated(v, s) for v, s in zip(values, seen, strict=True)])
    count = seen.sum(0)
    others = np.where(seen, values, 0.0).sum(0) / np.maximum(count, 1)
    others = np.where(count > 0, others, between)
    yesterday = np.repeat(mean[:, -8:-7], 7, axis=1)  # its last seen day, filled
    overall = np.full(shape, float(truth[flat].mean()))
    climate = mean[:, -37:-7].mean(1, keepdims=True)
    guesses: dict[str, dict[str, np.ndarray]] = {
        "hours": {"interpolation in time": between},
        "outage": {
            "interpolation in time": between,
            "the other airports": others,
        },
        "forecast": {
            "season alone": season.reshape(shape).numpy(),
            "mean of the last 30 days": np.broadcast_to(climate, shape),
            "last day again": np.concatenate([mean[:, :-7], yesterday], 1),
        },
    }
    rows, checks = [], {}
    for kind, chosen in kinds.items():
        error = {"grid GP": _rmse(mean[chosen], values[chosen])}
        error |= {n: _rmse(g[chosen], values[chosen]) for n, g in guesses[kind].items()}
        error["training mean"] = _rmse(overall[chosen], values[chosen])
        for name, value in error.items():
            rows.append(
                {"held out": kind, "cells": int(chosen.sum()), "method": name, "RMSE, F": value}
            )
        checks[f"{kind}: RMSE below that of the training mean"] = (
            error["grid GP"] < error["training mean"]
        )
    checks["outage: RMSE below that of interpolation in time"] = rows[
        [r["held out"] for r in rows].index("outage")
    ]["RMSE, F"] < _rmse(between[kinds["outage"]], values[kinds["outage"]])
    ahead_cells = torch.from_numpy(kinds["forecast"][2].ravel())
    third = cells.reshape(*shape, 3)[2].reshape(-1, 3)[ahead_cells][::6]
    found = fitted.posterior.predict(third)
    deviation = scale * (found.variance + model.likelihood.noise_variance.detach()).sqrt()
    write(
        None if quick else HERE,
        "weather_new_york",
        "New York airports: " + " x ".join(map(str, shape)) + " cells",
        [
            f"Real: hourly temperature in 2013, {1.0 - known.mean():.1%} never observed. Held out:",
            "a tenth of the hours, one airport for ten days, and the last week of all airports. "
            "Airports",
            "coregionalised, Matern 1/2 over days times Matern 3/2 over hours, the season",
            "as mean; trained by filling,",
            f"{fitted.evaluations} evaluations, {fitted.seconds:.0f} processor seconds. Nothing is",
            "published for this set.",
        ],
        rows,
        checks,
        pictures=["weather.png"],
    )
    return {
        "values": values,
        "mean": mean,
        "outage": (1, middle),
        "ahead": (third[:, 1] * 24 + third[:, 2]).numpy(),
        "ahead mean": (
            season.reshape(shape)[2].reshape(-1)[ahead_cells][::6] + scale * found.mean
        ).numpy(),
        "ahead deviation": deviation.numpy(),
    }


def _interpolated(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Linear interpolation in time between the observed values of a station."""
    time = np.arange(values.size)
    where = seen.ravel()
    return np.interp(time, time[where], values.ravel()[where]).reshape(values.shape)


def _rmse(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


def draw(canada: dict[str, Any], york: dict[str, Any]) -> None:
    """Draw a held-out station, an outage and a forecast."""
    figure = Figure(figsize=(11.0, 7.5), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1)
    top.plot(canada["days"], canada["truth"], "k.", markersize=2, label="withheld")
    top.plot(canada["days"], canada["mean"], color="C0", label="grid GP")
    top.plot(canada["days"], canada["nearest"], color="C1", linewidth=0.6, label="nearest station")
    low = canada["mean there"] - 3.0 * canada["deviation"]
    high = canada["mean there"] + 3.0 * canada["deviation"]
    top.fill_between(canada["at"], low, high, color="C0", alpha=0.2, label="3 standard deviations")
    top.set_ylabel("temperature, C")
    top.set_title("a Canadian station that was withheld", fontsize=9)
    airport, day = york["outage"]
    around = slice(day - 5, day + 15)
    hours = np.arange((day - 5) * 24, (day + 15) * 24)
    middle.plot(
        hours, york["values"][airport, around].ravel(), "k.", markersize=2, label="measured"
    )
    middle.plot(hours, york["mean"][airport, around].ravel(), color="C0", label="grid GP")
    middle.axvspan(day * 24, (day + 10) * 24, color="0.9", zorder=0, label="withheld")
    middle.set_ylabel("temperature, F")
    middle.set_title("an outage of ten days at one airport, the others go on", fontsize=9)
    days = york["values"].shape[1]
    hours = np.arange((days - 21) * 24, days * 24)
    bottom.plot(hours, york["values"][2, -21:].ravel(), "k.", markersize=2, label="measured")
    bottom.plot(hours, york["mean"][2, -21:].ravel(), color="C0", label="grid GP")
    low = york["ahead mean"] - 2.0 * york["ahead deviation"]
    high = york["ahead mean"] + 2.0 * york["ahead deviation"]
    bottom.fill_between(
        york["ahead"], low, high, color="C0", alpha=0.2, label="2 standard deviations"
    )
    bottom.axvline((days - 7) * 24, color="0.5", linewidth=0.8)
    bottom.set_xlabel("hours")
    bottom.set_ylabel("temperature, F")
    bottom.set_title("a forecast of one week", fontsize=9)
    for axis in (top, middle, bottom):
        axis.legend(fontsize=7, loc="lower left", ncols=4)
    figure.savefig(HERE / "weather.png", dpi=110)


def main() -> None:
    quick = argument_parser(__doc__, quick="smaller sizes").parse_args().quick
    found = canada(quick), new_york(quick)
    if not quick:
        draw(*found)


if __name__ == "__main__":
    main()
