"""Selectors of inducing points, and the number of points that certifies a divergence.

    python experiments/diagnostics/inducing.py            # 4,000 rows, M to 1,024: 15 minutes
    python experiments/diagnostics/inducing.py --quick    # 1,000 rows, nothing written: one minute

Hyperparameters are those of an exact GP on the same rows and stay fixed, so that divergences are
known by dense algebra. Three tables: clusters in the plane, real sets, and sets grown until
KL(q || posterior) is certified. Writes inducing_*.json, inducing.png and RESULTS.md beside this
file. Source: Burt's thesis, section 3.1.2 and figure 3.1; figures of real sets are ours.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import torch
from record import Checks, argument_parser, earlier, rewrite_checks, write
from torch import Tensor

from gpx.data import load
from gpx.data.sets.extra import ExtraTable
from gpx.data.sets.uci import UCI
from gpx.diagnostics import effective_dimension, kl_upper_bound, points_for_expected_kl
from gpx.diagnostics.evidence_bounds import collapsed_bound_value
from gpx.inducing import (
    Determinantal,
    Eigenvectors,
    GreedyConditionalVariance,
    InducingFeatures,
    KMeans,
    Points,
    RidgeLeverage,
    Selector,
    Uniform,
)
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.sparse.certified_selection import KLCertifier, certified_selection
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.training.lbfgsb import LBFGSB

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
SELECTORS: dict[str, Callable[[], Selector]] = {
    "uniform": Uniform,
    "kmeans": KMeans,
    "rls": RidgeLeverage,
    "dpp": Determinantal,
    "greedy": GreedyConditionalVariance,
}
BEST = "best of rank M"
"""No points: the leading eigenvectors of the kernel matrix, which have the smallest possible T."""


@dataclass(frozen=True)
class Problem:
    """Data at fixed hyperparameters, with the exact evidence (nats) and spectrum."""

    name: str
    kernel: Kernel
    noise: Tensor
    x: Tensor
    y: Tensor
    evidence: float
    eigenvalues: Tensor


def problem(name: str, x: Tensor, y: Tensor, evaluations: int) -> Problem:
    """RBF kernel with one lengthscale per input, at the maximum of the exact evidence."""
    model = ExactGP(
        kernel=RBF(ard_num_dims=x.shape[1]), mean=Zero(), likelihood=Gaussian(0.1)
    ).double()
    objective = ExactMLL()
    LBFGSB().minimise(
        list(model.parameters()),
        lambda: -objective.evidence(model, x, y).value / len(y),
        evaluations,
        lambda count, value, replayed: None,
    )
    kernel, noise = model.kernel, model.likelihood.noise_variance.detach()
    with torch.no_grad():
        evidence = float(objective.evidence(model, x, y).value)
        values = torch.linalg.eigvalsh(kernel.evaluate(x)).flip(0)
    return Problem(name, kernel.requires_grad_(False), noise, x, y, evidence, values)


def table_rows(name: str, num: int) -> tuple[Tensor, Tensor]:
    """The first ``num`` training rows of a set, standardised."""
    source = ExtraTable(name) if name == "snelson1d" else UCI(name)
    data = load(source, task="regression")
    return data.train_x[:num].double(), data.train_y[:num].double()


def measure(
    at: Problem, choose: Callable[[], Tensor], features: InducingFeatures
) -> dict[str, float]:
    """Time of one selection, and its collapsed bound."""
    began = time.perf_counter()
    z = choose()
    seconds = time.perf_counter() - began
    q = NystromMatrix.of(at.kernel, at.x, z, at.y, at.noise, features=features)
    bound = float(collapsed_bound_value(q, at.y))
    return {
        "bound": bound,
        "KL": at.evidence - bound,
        "KL at most": float(kl_upper_bound(q.sums, at.noise)),
        "T": float(q.sums.trace_error),
        "selection seconds": seconds,
        "jitter": q.report.relative,
    }


def compare(at: Problem, sizes: list[int], seeds: int) -> list[dict[str, Any]]:
    """Medians over seeds, one row per selector and number of points."""
    rows = []
    for m in sizes:
        for name, make in SELECTORS.items():
            found = []
            for seed in range(1 if name == "greedy" else seeds):
                draws = torch.Generator().manual_seed(seed)
                found.append(
                    measure(at, lambda: make()(at.x, at.kernel, m, generator=draws), Points())  # noqa: B023
                )
            middle = {key: statistics.median(f[key] for f in found) for key in found[0]}
            rows.append({"data": at.name, "n": len(at.y), "M": m, "selector": name, **middle})
        features = Eigenvectors()
        best = measure(
            at,
            lambda: features.choose(at.x, at.kernel, m, selector=Uniform()),  # noqa: B023
            features,
        )
        rows.append({"data": at.name, "n": len(at.y), "M": m, "selector": BEST, **best})
    return rows


def clusters(seeds: int, steps: int) -> list[dict[str, Any]]:
    """1,000 points of four normal clusters in the plane, 50 of them chosen."""
    kernel = RBF(lengthscale=1.0).double().requires_grad_(False)
    traces: dict[str, list[float]] = {name: [] for name in SELECTORS}
    gaps: dict[str, list[float]] = {name: [] for name in SELECTORS}
    for seed in range(seeds):
        draws = torch.Generator().manual_seed(seed)
        centres = torch.tensor([[-2.0, -2.0], [-2.0, 2.0], [2.0, -2.0], [2.0, 2.0]]).double()
        x = centres[torch.randint(4, (1000,), generator=draws)]
        x = x + 0.7 * torch.randn(1000, 2, generator=draws, dtype=torch.float64)
        for name, make in SELECTORS.items():
            selector = Determinantal(steps=steps) if name == "dpp" else make()
            z = selector(x, kernel, 50, generator=draws)
            q = NystromMatrix.of(kernel, x, z, x[:, 0], torch.tensor(0.1).double())
            distance = torch.cdist(z, z).fill_diagonal_(torch.inf)
            traces[name].append(float(q.sums.trace_error))
            gaps[name].append(float(distance.min(1).values.mean()))
    return [
        {
            "selector": name,
            "T": statistics.mean(traces[name]),
            "standard error": statistics.stdev(traces[name]) / math.sqrt(seeds),
            "largest T": max(traces[name]),
            "mean distance to the nearest": statistics.mean(gaps[name]),
        }
        for name in SELECTORS
    ]


def beside_uniform(rows: list[dict[str, Any]]) -> str:
    """Sentence on selectors whose mean T exceeds that of uniform points; empty without any."""
    uniform = next(row for row in rows if row["selector"] == "uniform")
    words = []
    for row in rows:
        if row["T"] > uniform["T"]:
            gap = row["T"] - uniform["T"]
            words.append(f"{row['selector']} by {gap:.2f}")
            if "standard error" in row:  # not in rows of November 22 and before
                error = math.hypot(row["standard error"], uniform["standard error"])
                words[-1] += (
                    f", {'within' if gap <= 2.0 * error else 'beyond'} two standard errors of the "
                    f"difference ({2.0 * error:.2f})"
                )
            else:
                words[-1] += (
                    f"; its largest T of a draw is {row['largest T']:.1f}, that of uniform points "
                    f"{uniform['largest T']:.1f}"
                )
    return f"T is larger than that of uniform points for {'; '.join(words)}." if words else ""


def words_on_clusters(
    rows: list[dict[str, Any]], draws: int, chain: int
) -> tuple[list[str], Checks]:
    """Notes and checks of the table of clusters."""
    traces = {row["selector"]: row["T"] for row in rows}
    notes = [
        "1,000 points, M = 50, squared exponential kernel of lengthscale 1; T is",
        "tr(K_xx - Q_xx). Means over draws of the data. Ridge leverage scores (rls) have",
        "oversampling 1; the published guarantee needs 5.",
        f"{draws} draws, {chain:,} steps of the determinantal process.",
        *filter(None, [beside_uniform(rows)]),
    ]
    return notes, {
        "T is smaller for over-dispersed points than for uniform ones": all(
            traces[name] < traces["uniform"] for name in ("kmeans", "dpp", "greedy")
        ),
        "T is largest for uniform points": traces["uniform"] == max(traces.values()),
    }


def grown(at: Problem, tolerance: float) -> dict[str, Any]:
    """Points added until the divergence is certified, and the number that inputs alone require."""
    began = time.perf_counter()
    certifier = KLCertifier(at.kernel, at.x, at.y, at.noise, tolerance, products=True)
    found = certified_selection(certifier, max_points=len(at.y))
    seconds = time.perf_counter() - began
    coarse = certified_selection(replace(certifier, products=False), max_points=len(at.y))
    q = NystromMatrix.of(at.kernel, at.x, found.points, at.y, at.noise)
    average = points_for_expected_kl(
        at.kernel, at.x, float(at.noise), tolerance, max_points=len(at.y)
    )
    return {
        "data": at.name,
        "n": len(at.y),
        "noise": float(at.noise),
        "effective dimension": float(effective_dimension(at.eigenvalues, at.noise)),
        "tolerance": tolerance,
        "M": len(found.points),
        "KL at most": found.kl,
        "KL": at.evidence - float(collapsed_bound_value(q, at.y)),
        "M by n M^2": len(coarse.points),
        "M for the average target": len(average.points),
        "seconds": seconds,
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Divergence, its certificate and seconds against M, a row of panels per data set."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = plt.subplots(len(names), 3, figsize=(12, 3.4 * len(names)), squeeze=False)
    for line, name in zip(panels, names, strict=True):
        for panel, key in zip(line, ("KL", "KL at most", "selection seconds"), strict=True):
            for selector in (*SELECTORS, BEST):
                part = [r for r in rows if r["data"] == name and r["selector"] == selector]
                style = "k--" if selector == BEST else "o-"
                if selector != BEST or key != "selection seconds":
                    sizes, values = [r["M"] for r in part], [max(r[key], 1e-6) for r in part]
                    panel.plot(sizes, values, style, label=selector, markersize=3)
            panel.set(xscale="log", yscale="log", xlabel="M", title=f"{name}: {key}")
            panel.set_xticks(sizes, [str(m) for m in sizes])
            panel.set_xticks([], minor=True)
        line[1].set_ylabel("nats")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argument_parser(__doc__, quick="fewer rows, points and seeds")
    parser.add_argument("--clusters", action="store_true", help="the first table alone")
    parser.add_argument("--table", action="store_true", help="only its words again, from its rows")
    options = parser.parse_args()
    quick = options.quick
    folder = None if quick else HERE
    num, seeds = (1000, 3) if quick else (4000, 5)
    sizes = [16, 64, 256] if quick else [16, 64, 256, 1024]

    draws, chain = (3, 10_000) if quick else (10, 50_000)
    if options.table:
        rows = earlier(HERE / "inducing_clusters.json")
        rewrite_checks(HERE, "inducing_clusters", *words_on_clusters(rows, draws, chain))
        return
    rows = clusters(draws, chain)
    notes, checks = words_on_clusters(rows, draws, chain)
    write(
        folder,
        "inducing_clusters",
        "Selectors on four clusters in the plane",
        notes,
        rows,
        checks,
    )
    if options.clusters:
        return

    problems = [problem(name, *table_rows(name, num), 30) for name in ("elevators", "kin40k")]
    rows = [row for at in problems for row in compare(at, sizes, seeds)]
    if not quick:
        draw(rows, HERE / "inducing.png")
    best = {(r["data"], r["M"]): r["T"] for r in rows if r["selector"] == BEST}
    keyed = {(r["data"], r["M"], r["selector"]): r for r in rows}
    write(
        folder,
        "inducing_real",
        "Selectors on real sets at fixed hyperparameters",
        [
            "Squared exponential kernel with a lengthscale per input, hyperparameters of an exact",
            f"GP on the same {num:,} rows. Nats; medians over {seeds} seeds. `KL at most` is",
            "the certificate of cost n M^2; `KL` uses the exact evidence. Where M is far",
            "too small, greedy points lie at the edge of the data, and cluster centres are",
            "better.",
        ],
        rows,
        {
            "no certificate is below the divergence": all(
                r["KL"] <= r["KL at most"] * (1 + 1e-9) + 1e-6 for r in rows
            ),
            "no selection has a smaller T than the leading eigenvectors": all(
                r["T"] >= best[r["data"], r["M"]] * (1 - 1e-9) for r in rows
            ),
            f"T is smaller for greedy points than for uniform ones at M = {sizes[-1]}": all(
                keyed[d, m, "greedy"]["T"] < keyed[d, m, "uniform"]["T"]
                for d, m in best
                if m == sizes[-1]
            ),
        },
        pictures=["inducing.png"],
    )

    low = problem("snelson1d", *table_rows("snelson1d", num), 60)
    rows = [grown(at, nats) for at in (low, *problems) for nats in (10.0, 0.1)]
    write(
        folder,
        "inducing_certified",
        "Greedy points until KL(q || posterior) is certified",
        [
            "Points are added as inducing=auto does before training; the certificate uses "
            "conjugate gradients on the kernel matrix.",
            "`M by n M^2`: points needed for a certificate without products with the kernel "
            "matrix. `M for the average target`:",
            "points with T / noise within the tolerance, which depends on the inputs alone and "
            "holds for targets",
            "drawn from the model.",
        ],
        rows,
        {
            "the exact divergence is within the tolerance": all(
                r["KL"] <= r["KL at most"] + 1e-6 <= r["tolerance"] + 1e-6 for r in rows
            )
        },
    )


if __name__ == "__main__":
    main()
