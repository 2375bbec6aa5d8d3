"""Time of an evidence with its gradient from sums over the data, over m and n.

    python experiments/reweighted/scaling.py
    python experiments/reweighted/scaling.py --quick

Seconds are of the processor on one thread, the best of several; ratios over n are of interleaved
timings.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import torch
from record import argument_parser, write
from timing import in_turns, least

from gpx.bases import RandomFourier
from gpx.bases.fixed_functions import sufficient_statistics
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.kernels import RBF
from gpx.methods.reweighted.evidence import joint_density
from gpx.methods.reweighted.orthogonal import OrthogonalForm, ReflectedForm
from gpx.methods.reweighted.weights import CompressedStatistics, CovarianceForm, ReweightedForm
from gpx.models import HyperPriors, LogNormal

HERE = Path(__file__).resolve().parent
PRIORS = HyperPriors(LogNormal(1.0, 100.0), LogNormal(0.1, 0.04))


def synthetic(m: int) -> CompressedStatistics:
    """Random sums over data with rank m."""
    found = CompressedStatistics.__new__(CompressedStatistics)
    found.values = torch.linspace(2.0, 1.0, m)
    found.vectors = torch.zeros(m, 0)
    found.targets = torch.randn(m, generator=torch.Generator().manual_seed(0))
    found.rest = torch.tensor(float(m))
    found.num_data, found.num_basis = 2 * m, m
    return found


def sums(n: int, m: int) -> SufficientStatistics:
    """Sums over data of random Fourier features at n normal points."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, generator=generator)
    return sufficient_statistics(RandomFourier(RBF(3, lengthscale=0.5), m), x, y)


def evaluation(form: ReweightedForm) -> Callable[[], object]:
    """Joint density and gradient at zero, the tails of reflections under the priors of log g."""
    u = torch.zeros(form.num_weights + 1)
    return lambda: joint_density(form, PRIORS, u)


def main() -> None:
    options = argument_parser(__doc__, quick="smaller sizes, nothing written").parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 7
    cubic = [100, 300] if options.quick else [100, 300, 1000, 2000]
    square = [250, 500] if options.quick else [250, 500, 1000, 2000]
    linear = [1000, 100_000] if options.quick else [1000, 10_000, 100_000, 1_000_000]
    tables: dict[str, list[dict[str, Any]]] = {}
    slopes = {}
    for name, sizes, make in (
        ("diagonal prior, covariance form", cubic, lambda m: CovarianceForm(sums(2 * m, m))),
        ("any prior, reflections", square, lambda m: ReflectedForm(synthetic(m))),
        ("diagonal prior on orthogonal functions", linear, lambda m: OrthogonalForm(synthetic(m))),
    ):
        rows: list[dict[str, Any]] = []
        for m in sizes:
            seconds = least(in_turns({"": evaluation(make(m))}, rounds)[""]).processor
            slope = None
            if rows:
                ratio = seconds / (rows[-1]["ms"] / 1e3)
                slope = math.log(ratio) / math.log(m / rows[-1]["m"])
            rows.append({"m": m, "ms": 1e3 * seconds, "slope": slope})
        tables[f"{name}: milliseconds an evaluation with its gradient"] = rows
        slopes[name] = rows[-1]["slope"]
    few, many = (1000, 20_000) if options.quick else (1000, 1_000_000)
    rows = []
    for m in (100, 300):
        began = time.process_time()
        small, large = sums(few, m), sums(many, m)
        setup = time.process_time() - began
        work = {"few": evaluation(CovarianceForm(small)), "many": evaluation(CovarianceForm(large))}
        turns = in_turns(work, 30 * rounds)
        seconds = [least(seen).processor for seen in turns.values()]
        rows.append(
            {
                "m": m,
                f"ms at n = {few:,}": 1e3 * seconds[0],
                f"ms at n = {many:,}": 1e3 * seconds[1],
                "ratio": seconds[1] / seconds[0],
                "summing, s": setup,
            }
        )
    tables["The same functions, sums over more data"] = rows
    names = list(slopes)
    checks = {
        "the time of an evaluation is the same for all n, within 10 %": all(
            0.9 < row["ratio"] < 1.1 for row in rows
        ),
        "slopes over log m are at most 3.2, 2.3 and 1.2 for the three forms": slopes[names[0]] < 3.2
        and slopes[names[1]] < 2.3
        and slopes[names[2]] < 1.2,
    }
    notes = ["Slope: growth of log time over log m from the row before."]
    title = "Cost of an evidence from sums over the data"
    write(None if options.quick else HERE, "scaling", title, notes, tables, checks)


if __name__ == "__main__":
    main()
