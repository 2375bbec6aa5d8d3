"""Why the error on gas differs from the published one: the deviation of the function.

    python experiments/direct/gas.py          # half an hour on a core
    python experiments/direct/gas.py --quick  # one draw, one deviation, one fold

Gas (2,565 rows, 128 inputs) is the set whose error, with the interpretation of table 7.1 that fits
the others (``uci.py --start whole_set --method plain``), is far from the published one. Three folds
each. First table: that kernel, with other deviations of the function. Second table: kernels of
other 1,000 rows, each from one search at lengthscales of one. Third table: the evidence of these
kernels on rows that they were not fitted to, which could choose a draw without test errors. Saved
rows are not computed again. Writes gas.json and RESULTS.md beside this file.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from published import PUBLISHED
from record import COMMIT, Checks, Rows, argument_parser, earlier, write
from torch import Tensor
from uci import AT_PRIOR, QUIET, loaded
from uci_tables import FUNCTIONS, inside
from whole_set import (
    FTOL,
    MAX_LENGTHSCALE,
    MIN_NOISE,
    ROWS,
    WholeSetKernel,
    random_rows,
    run_search,
    scaler_of,
    whole_set_kernel,
)

from gpx.bases.sufficient_statistics import FittedWeights
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import Direct, ExactGP
from gpx.objectives import ExactMLL
from gpx.options.composition import composed
from gpx.runs import RunFolder, run

HERE = Path(__file__).resolve().parent
NAME = "gas"
SPLITS = (0, 1, 2)
DEVIATIONS = (51.18, 16.5, 7.15, 4.0, 2.0, 1.0, 0.5)
"""Of the function in standard deviations of the targets: the signal variance, as read; that of
another search; the root of the first; and less."""
DRAWS = tuple(range(8))
BY_DEVIATION = "One kernel, other deviations of the function"
BY_ROWS = "Kernels of other rows"
BY_EVIDENCE = "Evidence of these kernels on their own and on other rows"
RULES = ("its own rows", "another 1,000 rows", "all rows")
"""Rows on which the evidence that chooses a draw is computed."""
WORST = 0.01
NO_NOISE = 1e-9
"""A smaller noise variance counts as no noise."""


def measured(kernel: WholeSetKernel, deviation: float, splits: tuple[int, ...]) -> dict[str, Any]:
    """Means over folds of one search from the prior, and of Gaussian weights on its functions."""
    folds = [fold(kernel._replace(signal=deviation**2), split) for split in splits]
    found = {key: statistics.fmean(f[key] for f in folds) for key in folds[0]}
    return {"deviation": deviation, "folds": len(folds)} | found


@torch.no_grad()
def fold(kernel: WholeSetKernel, split: int) -> dict[str, float]:
    """One fold as published, with another kernel and deviation."""
    options = kernel.options(scaler_of(NAME, split), squared=False)
    published = [f"approx.num_basis={FUNCTIONS}", AT_PRIOR, "approx.restarts=0"]
    quiet = [*QUIET, "trainer.baselines=false", "trainer.quiet=true"]
    chosen = [f"data={NAME}", f"data.split={split}", *options, f"optimizer.ftol={FTOL}"]
    with tempfile.TemporaryDirectory() as place, torch.enable_grad():
        folder = RunFolder(Path(place) / "run")
        metrics = run(composed([*chosen, *quiet, "approx=direct", *published]), folder)
        model, data = loaded(folder)
    assert isinstance(model, Direct)
    unit, noise = torch.ones_like(model.scale), model.likelihood.noise_variance.double()
    gaussian = model.scale * FittedWeights(model.statistics, unit, noise).mean
    posterior = model.condition(data.train_x.double(), data.train_y.double())
    scale = float(data.scaler.target_scale)

    def errors(mean: Tensor, y: Tensor) -> Tensor:
        return (mean - y).abs() * scale

    x = data.test_x.double()
    own = errors(posterior.predict(x).mean, data.test_y)
    free = errors(model.mean(x) + model.basis(x) @ gaussian, data.test_y)
    train = errors(posterior.predict(data.train_x.double()).mean, data.train_y)
    return {
        "RMSE": rms(own),
        "zeros, %": 100.0 * metrics["predict.sparsity"],
        "median error": float(own.median()),
        "worst 1 %, share of squares": worst(own),
        "RMSE of training rows": rms(train),
        "Gaussian weights: RMSE": rms(free),
        "Gaussian weights: median error": float(free.median()),
        "Gaussian weights: worst 1 %": worst(free),
        "gain of one more sweep, nats": metrics["train.sweep_gain"],
    }


def rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


def worst(errors: Tensor) -> float:
    """Share of the largest 1 % of the errors in the sum of squares."""
    squares = errors.square().sort(descending=True).values
    return float(squares[: math.ceil(WORST * len(squares))].sum() / squares.sum())


def of_rows(seed: int, splits: tuple[int, ...]) -> Rows:
    """A kernel of other rows, with the variance or its root as deviation."""
    x, y, scaler = random_rows(NAME, seed)
    found = run_search(x, y, 1.0)
    lengthscales = found["lengthscales"].clamp(max=MAX_LENGTHSCALE) * scaler.input_scale
    kernel = WholeSetKernel(
        lengthscales, found["signal"], found["noise"], float(scaler.target_scale)
    )
    facts = {
        "draw of rows": seed,
        "evidence, nats a row": found["evidence"],
        "signal variance": found["signal"],
        "noise variance": found["noise"],
    }
    readings = {"variance": found["signal"], "root": math.sqrt(found["signal"])}
    return [
        facts | {"reading": reading} | measured(kernel, deviation, splits)
        for reading, deviation in readings.items()
    ]


@torch.no_grad()
def evidences(seed: int) -> dict[str, Any]:
    """Evidence of a kernel on its own rows, as many others and all rows; nats a row."""
    x, y, _ = random_rows(NAME, seed, None)
    with torch.enable_grad():
        found = run_search(x[:ROWS], y[:ROWS], 1.0)
    lengthscales = found["lengthscales"].clamp(max=MAX_LENGTHSCALE).tolist()
    model = ExactGP(
        kernel=RBF(x.shape[1], lengthscale=lengthscales, outputscale=found["signal"]),
        mean=Zero(),
        likelihood=Gaussian(max(found["noise"], MIN_NOISE)),
    ).double()
    row: dict[str, Any] = {"draw of rows": seed, RULES[0]: found["evidence"]}
    for rule, rows in zip(RULES[1:], (slice(ROWS, 2 * ROWS), slice(None)), strict=True):
        value = ExactMLL().evidence(model, x[rows], y[rows]).value
        row[rule] = float(value) / len(y[rows])
    return row


def choices(tables: dict[str, Rows]) -> dict[str, tuple[int, float, float]]:
    """Rule -> the draw of the largest evidence, and its errors by variance and by root."""
    rows, errors = tables[BY_EVIDENCE], {}
    for row in tables[BY_ROWS]:
        errors[row["draw of rows"], row["reading"]] = row["RMSE"]
    found = {}
    for rule in RULES:
        draw = max(rows, key=lambda row: row[rule])["draw of rows"]
        found[rule] = draw, errors[draw, "variance"], errors[draw, "root"]
    return found


def judged(tables: dict[str, Rows]) -> Checks:
    """Checks against the published figures."""
    _, _, _, error, spread, zeros = PUBLISHED[NAME]

    def both(row: dict[str, Any]) -> bool:
        return inside(row["RMSE"], error, spread) and abs(row["zeros, %"] - zeros) <= 10.0

    def near(row: dict[str, Any]) -> bool:
        return inside(row["RMSE"], error, spread)

    checks: Checks = {}
    one, others = tables[BY_DEVIATION], tables[BY_ROWS]
    if len(one) == len(DEVIATIONS):
        fine = [f"{row['deviation']:g}" for row in one if both(row)]
        checks[
            "one kernel: RMSE and share of zeros as published for at least one deviation of the "
            f"function (for: {', '.join(fine) or 'none'})"
        ] = bool(fine)
        checks[
            "one kernel: the RMSE of Gaussian weights is within the bound at every deviation up to "
            "ten"
        ] = all(
            inside(row["Gaussian weights: RMSE"], error, spread)
            for row in one
            if row["deviation"] <= 10.0
        )
    for reading in ("variance", "root"):
        rows = [row for row in others if row["reading"] == reading]
        if len(rows) == len(DRAWS):
            count = sum(near(row) for row in rows)
            checks[
                f"kernels of other rows, deviation the {reading}: RMSE within the bound on at "
                f"least one draw (on {count} of {len(rows)}; share of zeros too on "
                f"{sum(map(both, rows))})"
            ] = count > 0
    if len(tables[BY_EVIDENCE]) == len(DRAWS):
        for rule, (draw, by_variance, _) in choices(tables).items():
            checks[
                f"the draw of largest evidence on {rule}, deviation the variance: RMSE within the "
                f"bound (draw {draw}: {by_variance:.3f})"
            ] = inside(by_variance, error, spread)
    return checks


def notes(tables: dict[str, Rows]) -> list[str]:
    """Notes of the table, with figures of its rows."""
    _, _, _, error, spread, zeros = PUBLISHED[NAME]
    found = [
        f"Published: RMSE {error} with a standard deviation of {spread} over folds, {zeros} % of "
        "zeros, by mean field. Errors are in units of the targets, whose standard deviation is "
        "1.04. Means over folds of one search from the prior, as published, beside the exact "
        "posterior of Gaussian weights on the same functions.",
        "The error comes from values of the weights that are too far apart: their distance is "
        "proportional to the standard deviation of the function, while the noise is small. The "
        "search then ends with most weights at zero; one sweep of coordinate ascent would add "
        "thousands of nats, and training rows have the same error as test rows. Gaussian weights "
        "on the same functions have a median error of a few hundredths (first table), and 1 % of "
        "the rows has half of their squared error or more. With kernels without noise the Gaussian "
        "weights are the worse ones (second table).",
    ]
    others = tables[BY_ROWS]
    if others:
        signals = [row["signal variance"] for row in others]
        evidences = [row["evidence, nats a row"] for row in others]
        ends = [row["RMSE"] for row in others]
        free = len([r for r in others if r["noise variance"] < NO_NOISE]) // 2
        found.append(
            "The result depends on which maximum of the evidence the kernel (128 lengthscales, "
            f"1,000 rows) reaches. Over {len(others) // 2} draws of rows its signal variance is "
            f"between {min(signals):.2g} and {max(signals):.2g}, its evidence between "
            f"{min(evidences):.2g} and {max(evidences):.2g} nats a row ({free} of the searches end "
            f"without noise), and the RMSE of discrete weights between {min(ends):.2f} and "
            f"{max(ends):.2f}. The published RMSE lies in this range, but since the source names "
            "neither the rows nor the start, it cannot be reproduced. All sets use the first draw "
            "of rows.",
        )
    if len(tables[BY_EVIDENCE]) == len(DRAWS):
        chosen = "; ".join(
            f"on {rule} draw {draw}, with errors of {by_variance:.3f} (variance) and {by_root:.3f} "
            "(root)"
            for rule, (draw, by_variance, by_root) in choices(tables).items()
        )
        found.append(
            f"A draw could be chosen by the largest evidence of its kernel: {chosen}. The largest "
            "evidence on a draw's own rows belongs to a kernel without noise, whose evidence on "
            "other rows is nearly the worst. The draw with the largest evidence on other rows has "
            "an error far above the published one. Neither rule is used."
        )
    return found


def main() -> None:
    quick = argument_parser(__doc__, quick="little of each").parse_args().quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of searches that end at corners, which is expected here
    name = f"{NAME}_quick" if quick else NAME
    splits = SPLITS[:1] if quick else SPLITS
    tables: dict[str, Rows] = {BY_DEVIATION: [], BY_ROWS: [], BY_EVIDENCE: []}
    tables |= earlier(HERE / f"{name}.json") or {}

    def save() -> None:
        shown = {caption: rows for caption, rows in tables.items() if rows}
        write(
            None if quick else HERE,
            name,
            "Gas: why its error differs from the published one",
            notes(tables),
            shown,
            judged(tables),
        )

    kernel = whole_set_kernel(NAME)
    for deviation in DEVIATIONS[:1] if quick else DEVIATIONS:
        if all(row["deviation"] != deviation for row in tables[BY_DEVIATION]):
            tables[BY_DEVIATION].append(measured(kernel, deviation, splits) | {"commit": COMMIT})
            save()
    for seed in DRAWS[:1] if quick else DRAWS:
        if all(row["draw of rows"] != seed for row in tables[BY_ROWS]):
            tables[BY_ROWS] += [row | {"commit": COMMIT} for row in of_rows(seed, splits)]
            save()
    for seed in DRAWS[:1] if quick else DRAWS:
        if all(row["draw of rows"] != seed for row in tables[BY_EVIDENCE]):
            tables[BY_EVIDENCE].append(evidences(seed) | {"commit": COMMIT})
            save()
    save()


if __name__ == "__main__":
    main()
