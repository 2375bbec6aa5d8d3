"""Committees and local experts beside SGPR, SVGP and the exact process, on real sets.

    python experiments/experts/compare.py            # missing runs, then the tables
    python experiments/experts/compare.py --quick    # airfoil alone, a few steps, nothing written
    python experiments/experts/compare.py --report   # the tables from the saved runs

Split 0 of every set, Matern 3/2 with a lengthscale per input, started at an exact Gaussian process
on 1,000 rows (init=subset), trained as the configs of approx= state. Committees whose rules differ
are trained once: the evidence is the same. Finished cells are in compare_cells.jsonl and are not
repeated. Writes compare.json, local.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from cells import Cells
from gpx_runs import trained
from record import write

from gpx.data import load as load_data
from gpx.metrics import evaluate
from gpx.models import CommitteePosterior
from gpx.options.build import build
from gpx.runs import RunFolder, load

HERE = Path(__file__).resolve().parent
CELLS = HERE / "compare_cells.jsonl"
MAIN_ROAD = HERE.parent / "main_road" / "rows.json"
TRAINING = "seconds of training, by the clock"
"""Column of the rows of main_road, whose processor seconds were not recorded."""
Cell = dict[str, Any]

EXPERTS = {"airfoil": 8, "elevators": 32, "kin40k": 64}
"""Set -> number of experts."""
EXACT = ("airfoil",)
ADAM_SVGP = ("approx=svgp", "optimizer=svgp")
"""By Adam, as its rows were measured."""
SPARSE = {
    "sgpr": ["approx=sgpr", "approx.num_inducing=512", "trainer.max_steps=60"],
    "svgp": [*ADAM_SVGP, "approx.num_inducing=512", "trainer.max_steps=1000"],
}
RBCM = ["approx=committee", "approx.rule=rbcm"]
SCORES = {"rmse": "rmse", "mnlp": "mnlp", "coverage": "coverage_95"}
SCORES |= {name: name for name in ("rmse_original", "mnlp_original")}
"""Names of cells -> names of metrics."""
RULES = ("poe", "gpoe", "bcm", "rbcm")
LOCAL = ["approx.num_experts=64", "approx.points_per_expert=100", "kernel=matern52"]
KIN = "kin8nm, 7,373 rows"
SHARED = "approx.hyperparameters=shared"
PROTOCOL = {
    "local_experts, own hyperparameters": ["approx=local_experts", *LOCAL],
    "local_experts, shared hyperparameters": ["approx=local_experts", *LOCAL, SHARED],
    "transductive, own hyperparameters": ["approx=transductive", *LOCAL],
    "transductive, shared hyperparameters": ["approx=transductive", *LOCAL, SHARED],
    "svgp, 64 inducing points": [
        *ADAM_SVGP,
        *("approx.num_inducing=64", "kernel=matern52", "trainer.max_steps=1500"),
    ],
}
"""Configurations of E16 of the thesis: 64 experts of 100 points, 100 neighbours."""
PUBLISHED = {
    "local_experts, own hyperparameters": "0.13, -0.40",
    "transductive, own hyperparameters": "0.09, -0.65",
}
"""RMSE and MNLP on KIN8NM (Tran thesis, table 4.3), in the data's units."""


def plans(sets: list[str]) -> list[tuple[str, str, list[str]]]:
    """Set, name of the run and its options."""
    found = []
    for name in sets:
        base, count = [f"data={name}", "kernel=matern32"], f"approx.num_experts={EXPERTS[name]}"
        runs = {
            "committee, clusters": [*base, *RBCM, count],
            "committee, random": [*base, *RBCM, count, "partition=random"],
            "grbcm, clusters": [*base, "approx=committee", count, "approx.rule=grbcm"],
            "grbcm, as by default": [f"data={name}", "approx=committee"],
            "local_experts, own": [*base, "approx=local_experts", count],
            "local_experts, shared": [*base, "approx=local_experts", count, SHARED],
            "transductive, shared": [*base, "approx=transductive", count, SHARED],
        }
        if name in EXACT:
            runs["exact"] = [*base, "approx=exact"]
        if name != "kin40k":  # its rows are in experiments/main_road
            runs |= {kind: [*base, *options] for kind, options in SPARSE.items()}
        found += [(name, run, options) for run, options in runs.items()]
    return found


def runs_of(name: str) -> list[str]:
    """Names of the cells of a plan: of a committee, one for each rule, the trained one first."""
    if "committee" not in name:
        return [name]
    return [f"{rule}, {name.split(', ')[1]}" for rule in reversed(RULES)]


def cells_of(data: str, name: str, options: list[str]) -> list[Cell]:
    """One run, and for a committee its other rules, as cells."""
    committee = "committee" in name
    done = trained(options, other_rules if committee else lambda _: {})
    metrics = done.metrics
    first = {
        "plan": name,
        "data": data,
        "n": int(done.config.facts.num_train),
        "evidence": metrics["train.evidence"],
        "steps": metrics["train.steps"],
        "processor seconds": done.seconds,
        "peak MiB": metrics["memory.peak_mib"],
        "run": runs_of(name)[0],
        **{name: metrics[f"test.{key}"] for name, key in SCORES.items()},
        "baselines": {key: metrics[f"baseline.{key}.rmse"] for key in ("linear", "5-nn")}
        | {f"{key} mnlp": metrics[f"baseline.{key}.mnlp"] for key in ("linear", "5-nn")},
    }
    rules = {first["run"].replace("rbcm", rule): scores for rule, scores in done.found.items()}
    return [first, *({**first, "run": run, **scores} for run, scores in rules.items())]


@torch.no_grad()
def other_rules(folder: RunFolder) -> dict[str, dict[str, float]]:
    """Scores of the same experts with the other combination rules."""
    predictor = load(folder.path)
    data = load_data(build(folder.read_config(), "data"), task="regression")
    trained = predictor.posterior
    assert isinstance(trained, CommitteePosterior)
    found = {}
    for rule in RULES[:-1]:
        posterior = CommitteePosterior(trained.parts, rule, trained.budget).double()
        posterior.load_state_dict(trained.state_dict())
        predictive = posterior.predictive(data.test_x.double(), predictor.likelihood)
        metrics = evaluate("regression", predictive, data.test_y.double(), data.scaler)
        found[rule] = {name: metrics[key] for name, key in SCORES.items()}
    return found


def report(cells: list[Cell]) -> None:
    """compare.json, local.json and RESULTS.md."""
    shown = ("n", "rmse", "mnlp", "coverage", "evidence", "steps", "processor seconds", "peak MiB")
    tables: dict[str, list[Cell]] = {}
    for name in EXPERTS:
        own = [cell for cell in cells if cell["data"] == name]
        if not own:
            continue
        clock: Cell = {TRAINING: None} if name == "kin40k" else {}
        rows = [
            {
                "run": cell["run"],
                **{key: cell[key] for key in shown},
                **clock,
                "commit": cell["commit"],
            }
            for cell in own
        ]
        if name == "kin40k":
            rows += main_road(own[0]["n"])
        for baseline in ("linear", "5-nn"):
            rows.append(
                {
                    "run": baseline,
                    **dict.fromkeys(shown),
                    **clock,
                    "rmse": own[0]["baselines"][baseline],
                    "mnlp": own[0]["baselines"][f"{baseline} mnlp"],
                    "commit": own[0]["commit"],
                }
            )
        tables[f"{name}, {EXPERTS[name]} experts"] = rows
    by = {(c["data"], c["run"]): c for c in cells}
    sets = [name for name in EXPERTS if any(c["data"] == name for c in cells)]

    def below(left: str, right: str, key: str) -> dict[str, bool | None]:
        values = {name: (by.get((name, left)), by.get((name, right))) for name in sets}
        return {
            f"{key} of {left} is below that of {right} on {name}": None
            if a is None or b is None
            else a[key] < b[key]
            for name, (a, b) in values.items()
        }

    checks = {
        **below("rbcm, clusters", "poe, clusters", "mnlp"),
        **below("grbcm, clusters", "rbcm, clusters", "rmse"),
        **below("grbcm, clusters", "rbcm, clusters", "mnlp"),
    }
    notes = [
        "Split 0, standardised targets, Matern 3/2 with a lengthscale per input, one thread;",
        "processor seconds of the whole run, with data and test metrics. The evidence of",
        "experts is that of independent experts, and for SGPR and SVGP a lower bound: they do not",
        "compare. SGPR and SVGP have 512 inducing points (60 evaluations, 1,000 steps); rows of",
        "kin40k come from `experiments/main_road`, which has seconds of training by the clock.",
        "All rules of a partition combine the same trained experts.",
        "'As by default': RBF kernel, one expert for about 500 rows, grBCM.",
        "Why rBCM is worse than the product of experts on kin40k: the noise is small, every",
        "expert has a far smaller variance than the prior, and the weights of rBCM then sum to "
        "more than the",
        "number of experts (6,000 rows, 12 experts: to 17.7 at a test point on average; airfoil, 8",
        "experts: to 3.3), so its variance is too small for its errors.",
    ]
    write(HERE, "compare", "Combination rules, partitions and local experts", notes, tables, checks)
    local = [cell for cell in cells if cell["data"] == KIN]
    if local:
        rows = [
            {
                "run": cell["run"],
                "rmse": cell["rmse_original"],
                "mnlp": cell["mnlp_original"],
                "coverage": cell["coverage"],
                "processor seconds": cell["processor seconds"],
                "published": PUBLISHED.get(cell["run"]),
                "commit": cell["commit"],
            }
            for cell in local
        ]
        found = {row["run"]: row for row in rows}
        pair = [found.get(f"{k}, own hyperparameters") for k in ("local_experts", "transductive")]

        def smaller(key: str) -> bool | None:
            own, others = pair
            return None if own is None or others is None else others[key] < own[key]

        checks = {
            "transductive has a smaller RMSE than local experts, as published": smaller("rmse"),
            "transductive has a smaller MNLP than local experts, as published": smaller("mnlp"),
        }
        notes = [
            "KIN8NM, split 0 of ten random ones (about 7,000 training rows are published). Matern",
            "5/2, 64 experts of 100 points, 100 neighbours. Units of the data. Three folds beside",
            "SWSGP: experiments/swsgp.",
        ]
        write(HERE, "local", "Local Gaussian processes (E16)", notes, rows, checks)


def main_road(num_data: int) -> list[Cell]:
    """SGPR and SVGP on kin40k, measured there on the same split."""
    rows = json.loads(MAIN_ROAD.read_text())
    return [
        {
            "run": kind,
            "n": num_data,
            "rmse": rows[kind]["metrics"]["test.rmse"],
            "mnlp": rows[kind]["metrics"]["test.mnlp"],
            "coverage": rows[kind]["metrics"]["test.coverage_95"],
            "evidence": rows[kind]["metrics"]["train.evidence"],
            "steps": rows[kind]["metrics"]["train.steps"],
            "processor seconds": None,
            "peak MiB": rows[kind]["metrics"]["memory.peak_mib"],
            TRAINING: rows[kind]["metrics"]["train.seconds"],
            "commit": rows[kind]["git_commit"],
        }
        for kind in ("sgpr", "svgp")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", nargs="*", choices=EXPERTS, default=list(EXPERTS))
    parser.add_argument("--report", action="store_true", help="tables from the cells there are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    protocol = [(KIN, name, ["data=kin8nm", *chosen]) for name, chosen in PROTOCOL.items()]
    todo = [] if options.report else [*protocol, *plans(options.sets)]
    short: list[str] = []
    if options.quick:
        todo, short = plans(["airfoil"]), ["trainer.max_steps=3"]
    cells = Cells(None if options.quick else CELLS, "data", "run")
    for data, name, chosen in todo:
        if all((data, run) in cells for run in runs_of(name)):
            continue
        for cell in cells_of(data, name, [*chosen, *short]):
            cells.add(cell)
    if not options.quick:
        report(cells.rows)


if __name__ == "__main__":
    main()
