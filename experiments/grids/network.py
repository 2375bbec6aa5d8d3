"""A synthetic network of weather stations: every way to treat gaps at the same hyperparameters.

    python experiments/grids/network.py            # 14 x 73 x 60 x 2 cells, a minute on one core
    python experiments/grids/network.py --quick    # 6 x 36 x 30 x 2 cells, nothing written

It has the structure of the Ontario records of Evans thesis, section 3.5.3, table 3.1 (not public):
year x day x station x (minimum, maximum), most cells empty. It is drawn from its own model, so that
the strategies must agree. Writes network.json and RESULTS.md beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from fit import circle, copy_parameters, fit, random_share, rmse
from record import argument_parser, write

from gpx.kernels import AxisProduct
from gpx.kernels.algebra import Product
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GapOptions, GridGP

HERE = Path(__file__).resolve().parent
PUBLISHED = {
    # hours; RMSE of minimum and maximum temperature, degrees C
    "fill": (11.5, 2.018, 1.453),
    "ignore": (173.1, 2.018, 1.454),
    "ignore, 300 eigenpairs": (37.3, 2.018, 1.453),
    "ignore, 1000 eigenpairs": (19.7, 2.018, 1.453),
    "penalize 100": (221.5, 2.017, 1.452),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "fill": {"gaps": "fill"},
    "ignore": {"gaps": "ignore", "precondition_rank": 0},
    "ignore, 300 eigenpairs": {"gaps": "ignore", "precondition_rank": 300},
    "ignore, 1000 eigenpairs": {"gaps": "ignore", "precondition_rank": 1000},
    "penalize 100": {"gaps": "penalize", "penalty": 100.0},
}


def network(quick: bool) -> None:
    """Year x day x station x (minimum, maximum): every strategy at the same hyperparameters."""
    sizes = (6, 36, 30, 2) if quick else (14, 73, 60, 2)
    random = torch.Generator().manual_seed(0)
    stations = torch.rand(sizes[2], 2, generator=random, dtype=torch.float64) * 4.0
    years, days, outputs = (torch.arange(m, dtype=torch.float64) for m in (*sizes[:2], sizes[3]))
    index = torch.cartesian_prod(years, days, torch.arange(sizes[2]).double(), outputs)
    place = stations[index[:, 2].long()]
    cells = torch.cat([index[:, :2], place, index[:, 3:]], 1)
    axes = [[0], [1], [2, 3], [4]]

    def model(**solver: Any) -> GridGP:
        kernel = Product(
            [
                AxisProduct(["matern12", "rbf"], 5, [[0], [2, 3]], [3.0, 1.0, 1.0, 1.0, 1.0], None),
                circle(1, float(sizes[1]), 0.5),
                Coregionalisation(2, [4], 0.5),
            ]
        )
        return GridGP(
            kernel=kernel,
            mean=Zero(),
            likelihood=Gaussian(0.04),
            axes=axes,
            solver=GapOptions(tolerance=1e-7, **solver),
        ).double()

    truth_model = model()
    rows = truth_model.gridded(cells)
    with torch.no_grad():
        system = truth_model.system(rows, truth_model.axis_kernels(rows).matrices(rows.grid))
        normals = torch.randn(rows.grid.size, generator=random, dtype=torch.float64)
        # 5 degrees of signal, 1 degree of noise
        field = 5.0 * system.root(normals)[rows.cells]
    noisy = field + torch.randn(len(field), generator=random, dtype=torch.float64)
    # a station records in a window of the years; of that, 45 % of the cells are kept
    start = torch.rand(sizes[2], generator=random) * 0.5 * sizes[0]
    length = (0.2 + 0.8 * torch.rand(sizes[2], generator=random)) * sizes[0]
    station, year = index[:, 2].long(), index[:, 0]
    works = (year >= start[station].floor()) & (year < (start + length)[station].ceil())
    works &= ~random_share(sizes, max(0.0, 1.0 - 0.45 / float(works.double().mean())), 1)
    test = works & random_share(sizes, 0.3, 2)
    seen = works & ~test
    scale = float(noisy[seen].std())
    x, y = cells[seen], noisy[seen] / scale
    base = model(gaps="fill")
    trained = fit(base, x, y, 8 if quick else 15)
    found = []
    for name, options in STRATEGIES.items():
        other = model(**options)
        copy_parameters(base, other)
        solved = fit(other, x, y, 0)
        mean = scale * solved.posterior.predict_mean(cells)
        row: dict[str, Any] = {"method": name, "steps": solved.iterations}
        for o, label in enumerate(("minimum", "maximum")):
            mine = test & (index[:, 3] == o)
            row[f"RMSE {label}"] = rmse(mean[mine], noisy[mine])
        row["processor seconds"] = solved.seconds
        row["published RMSE"] = list(PUBLISHED[name][1:])
        row["published hours"] = PUBLISHED[name][0]
        found.append(row)
        print(row, flush=True)
    exact = [r for r in found if not r["method"].startswith("penalize")]
    spread = [
        max(r[key] for r in found) - min(r[key] for r in found)
        for key in ("RMSE minimum", "RMSE maximum")
    ]
    write(
        None if quick else HERE,
        "network",
        "Synthetic network: " + " x ".join(map(str, sizes)) + " cells",
        [
            "SYNTHETIC: drawn from the model (year Matern 1/2, day periodic, station SE,",
            "outputs coregionalised), noise 1 degree; "
            f"{1.0 - float(seen.double().mean()):.0%} of the cells are gaps.",
            f"Hyperparameters trained by filling ({trained.evaluations} evaluations, "
            f"{trained.seconds:.0f} s), then one solve per method,",
            "relative residual 1e-7. Published: Evans thesis, table 3.1, 12 million cells of real",
            "records, hours with training; its eigenpairs are 1000 and 3000.",
            ratios({r["method"]: r["processor seconds"] for r in found}, len(y)),
        ],
        found,
        {
            "the RMSEs of all methods agree to 0.002": max(spread) < 0.002,
            "the RMSEs of the exact methods agree to 1e-5": max(
                abs(r[key] - exact[0][key])
                for r in exact
                for key in ("RMSE minimum", "RMSE maximum")
            )
            < 1e-5,
            "filling has the fastest solve": found[0]["processor seconds"]
            == min(r["processor seconds"] for r in found),
            "every RMSE is between the noise standard deviation and 1.5 times it": all(
                1.0 * 0.95 < found[0][key] < 1.5 for key in ("RMSE minimum", "RMSE maximum")
            ),
        },
    )


def ratios(seconds: dict[str, float], observed: int) -> str:
    """What the ratios of times have in common with the published ones, in words."""
    hours = {name: published[0] for name, published in PUBLISHED.items()}
    many = "ignore, 1000 eigenpairs"
    (plain, gain), (published_plain, published_gain) = (
        (times["ignore"] / times["fill"], times[many] / times["ignore"])
        for times in (seconds, hours)
    )
    text = (
        f"Ignoring the gaps takes {plain:.1f} times as long as filling them (published: "
        f"{published_plain:.1f}), and with the most eigenpairs {gain:.2g} times as long as without "
        f"(published: {published_gain:.2g})"
    )
    if gain > 1.0:
        text += (
            f": with {observed:,} observed cells their set-up costs more than the steps it saves"
        )
    return text + "."


def main() -> None:
    parser = argument_parser(__doc__, quick="smaller sizes")
    network(parser.parse_args().quick)


if __name__ == "__main__":
    main()
