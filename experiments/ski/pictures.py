"""Pictures of a prior and a posterior, of the synthetic function, and of grids (E0).

    python experiments/ski/pictures.py           # seconds
    python experiments/ski/pictures.py --quick   # nothing written

Figures 2.1, 4.1 and 4.2 of Hultin 2017. Writes posterior.png, function.png, grids.png,
pictures.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from record import Checks, Rows, write
from setting import synthetic
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg import RegularAxis
from gpx.means import Zero
from gpx.methods.ski.grid import kmeans_axis
from gpx.models import ExactGP

HERE = Path(__file__).resolve().parent
POINTS = (-3.5, -2.0, -0.5, 1.0, 3.0)
DRAWS = 4
NOISELESS = 1.1e-6
"""Noise variance that stands for none: the smallest that the likelihood accepts."""


@torch.no_grad()
def posterior(picture: Path | None) -> Rows:
    """E0: prior and posterior of five data points without noise, lengthscale sqrt(2)."""
    model = ExactGP(
        kernel=RBF(1, math.sqrt(2.0), 1.0), mean=Zero(), likelihood=Gaussian(NOISELESS)
    ).double()
    x = torch.tensor(POINTS, dtype=torch.float64).unsqueeze(1)
    y = torch.sin(1.3 * x[:, 0]) + 0.3 * x[:, 0]
    line = torch.linspace(-6.0, 6.0, 241, dtype=torch.float64).unsqueeze(1)
    every = torch.cat([line, x])
    conditioned = model.condition(x, y)
    found = conditioned.predict(every)
    generator = torch.Generator().manual_seed(0)
    covariance = model.kernel.evaluate(line, line)
    draws = {
        "prior": drawn(torch.zeros(len(line), dtype=torch.float64), covariance, generator),
        "posterior": drawn(found.mean, conditioned.joint_covariance(every), generator),
    }
    if picture is not None:
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        prior = (torch.zeros(len(line)), torch.ones(len(line)))
        after = (found.mean[: len(line)], found.variance[: len(line)])
        for axes, title, (mean, variance) in ((left, "prior", prior), (right, "posterior", after)):
            band = 1.96 * variance.sqrt()
            axes.fill_between(line[:, 0], mean - band, mean + band, alpha=0.2, color="C0")
            axes.plot(line[:, 0], mean, "C0", lw=2)
            axes.plot(line[:, 0], draws[title][:, : len(line)].mT, "k", lw=0.6)
            axes.set(title=title, xlabel="x")
        right.plot(x[:, 0], y, "C3o")
        figure.savefig(picture, dpi=110)
    distance = (line - x.mT).abs().min(1).values
    far = distance.argmax()
    at = draws["posterior"][:, len(line) :]
    return [
        {
            "largest variance at the data": float(found.variance[len(line) :].max()),
            "variance farthest from the data": float(found.variance[far]),
            "rank correlation of variance and distance": rank_correlation(
                distance, found.variance[: len(line)]
            ),
            "draws, largest distance from the data": float((at - y).abs().max()),
        }
    ]


def drawn(mean: Tensor, covariance: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (DRAWS, t) of a normal law whose covariance may be singular."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0.0).sqrt()
    normals = torch.randn(DRAWS, len(mean), generator=generator, dtype=mean.dtype)
    return mean + normals @ root.mT


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's."""
    ranks = [v.argsort().argsort().double() for v in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def function(picture: Path | None) -> Rows:
    """E0b: the synthetic function with one and two inputs, seed 0."""
    line = np.linspace(-10.0, 10.0, 201)
    surfaces = [values(np.stack(np.meshgrid(*[line] * d, indexing="ij"), -1)) for d in (1, 2)]
    if picture is not None:
        figure = Figure(figsize=(10, 4), layout="constrained")
        left = figure.add_subplot(1, 2, 1)
        left.plot(line, surfaces[0])
        left.set(title="one input", xlabel="x")
        right = figure.add_subplot(1, 2, 2, projection="3d")
        across = np.meshgrid(line, line, indexing="ij")
        right.plot_surface(*across, surfaces[1], cmap="viridis", rcount=80, ccount=80)
        right.set(title="two inputs")
        figure.savefig(picture, dpi=90)
    rows = []
    for inputs in (1, 2):
        data = synthetic(1000, 0, inputs)
        apart = np.abs(values(data.x.numpy()) - data.y.numpy()).max()
        rows.append({"inputs": inputs, "data, largest distance from the function": float(apart)})
    return rows


def values(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The function of seed 0 at x (..., d), without noise."""
    inputs = x.shape[-1]
    weights = np.random.default_rng(0).uniform(-1.0, 1.0, (2, inputs))
    wave = 4.0 * (weights[0] * np.sin(4.0 * weights[1] * x)).sum(-1)
    found: NDArray[np.float64] = wave * np.exp(-np.square(x).sum(-1) / (50.0 * inputs))
    return found


def grids(picture: Path | None) -> Rows:
    """E0c: 15 points an axis over 15 and 50 rows: equidistant, on the data, k-means."""
    rows, panels = [], []
    for n, placement in ((15, "equidistant"), (15, "data"), (50, "equidistant"), (50, "kmeans")):
        x = synthetic(n, 0, 2).x
        if placement == "equidistant":
            axes = [
                RegularAxis.covering(float(c.min()), float(c.max()), 15, margin=2).points(c)
                for c in x.unbind(1)
            ]
        else:
            axes = [kmeans_axis(c, n + 2 if placement == "data" else 15) for c in x.unbind(1)]
        panels.append((n, placement, x, axes))
        on_grid = [bool(torch.isin(c, a).all()) for c, a in zip(x.unbind(1), axes, strict=True)]
        rows.append(
            {
                "rows": n,
                "grid": placement,
                "points an axis": [len(a) for a in axes],
                "rows on grid points": all(on_grid),
            }
        )
    if picture is not None:
        figure = Figure(figsize=(12, 3.4), layout="constrained")
        for place, (n, placement, x, axes) in zip(figure.subplots(1, 4), panels, strict=True):
            points = torch.cartesian_prod(*axes)
            place.plot(points[:, 0], points[:, 1], ".", ms=2, color="0.6")
            place.plot(x[:, 0], x[:, 1], "C3o", ms=3)
            place.set(title=f"{n} rows, {placement}", aspect="equal")
        figure.savefig(picture, dpi=90)
    return rows


def judged(bands: Rows, surfaces: Rows, meshes: Rows) -> Checks:
    """Checks of the rows: statement -> whether it holds."""
    band = bands[0]
    return {
        "E0: the posterior variance at the data is at most the noise variance": (
            band["largest variance at the data"] <= NOISELESS
        ),
        "E0: it grows with the distance from the data, to at least 0.9 of the prior variance": (
            band["variance farthest from the data"] >= 0.9
            and band["rank correlation of variance and distance"] >= 0.9
        ),
        "E0: posterior draws pass the data at a distance of at most 5e-3": (
            band["draws, largest distance from the data"] <= 5e-3
        ),
        "E0b: the data lie within five noise standard deviations of the function": (
            all(row["data, largest distance from the function"] <= 0.05 for row in surfaces)
        ),
        "E0c: a k-means grid with as many points as rows has every row on a grid point": (
            meshes[1]["rows on grid points"] and not meshes[0]["rows on grid points"]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    names = ("posterior.png", "function.png", "grids.png")
    places = [None if quick else HERE / name for name in names]
    made = posterior(places[0]), function(places[1]), grids(places[2])
    checks = judged(*made)
    if quick:
        print(made, checks)
        return
    write(
        HERE,
        "pictures",
        "A posterior, the synthetic function and grids in pictures (E0)",
        [
            "Posterior: SE kernel, lengthscale sqrt(2), signal variance 1, five data points with "
            "noise variance 1e-6; the picture shows mean, 95 % band and draws of prior and "
            "posterior. Function: the synthetic function of section 4.1, seed 0, with one and two "
            "inputs. Grids: 15 points an axis, equidistant with a margin of two cells, on the "
            "data's coordinates, or at k-means centres.",
        ],
        {"Posterior": made[0], "Function": made[1], "Grids": made[2]},
        checks,
        pictures=names,
    )


if __name__ == "__main__":
    main()
