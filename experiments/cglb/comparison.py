"""CGLB, SGPR and the iterative GP beside the published table.

    python experiments/cglb/comparison.py --quick             # 2,000 training rows
    python experiments/cglb/comparison.py --data elevators --inducing 1024 --splits 0 1 2
    python experiments/cglb/comparison.py --from FOLDER ...   # add finished run folders
    python experiments/cglb/comparison.py --from              # only write the tables again

Protocol: random 67 % training rows, Matern 3/2 with one lengthscale per input, constant mean, every
hyperparameter starts at 1, greedy inducing points, L-BFGS; standardised targets. Rows go to
rows.json, where a run replaces its row, and the table to RESULTS.md beside this file. A run whose
folder is there is not repeated, and an unfinished one goes on from its checkpoint. Published:
Artemev, Burt and van der Wilk (2021), as medians over 3 splits in Burt's thesis, table 4.1; one
V100 GPU.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from datetime import date
from itertools import groupby, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpx_runs import QUIET, ROOT, Finished, train_in
from omegaconf import DictConfig
from record import Checks, argument_parser, origin, tally, verdict
from row_files import locked, merged

from gpx.atomic_file import write_atomically
from gpx.data import load as load_data
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.options.build import build, build_model
from gpx.training.checkpoint import load_checkpoint

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows.json"
TRACES = HERE / "traces.json"
EXACT_UP_TO = 12_000
"""Training points up to which the exact evidence is computed at the learned hyperparameters."""
SIZES = {
    "bike": 17379,
    "elevators": 16599,
    "pol": 15000,
    "kin40k": 40000,
    "protein": 45730,
    "keggundirected": 63608,
}
PUBLISHED = {
    # data, method: approximate evidence, exact evidence, NLPD, RMSE
    ("bike", "iterative"): (30992.8, 31319.1, -2.016, 0.020),
    ("bike", "sgpr-4096"): (30502.5, 32814.2, -3.280, 0.010),
    ("bike", "cglb-4096"): (37732.7, 42023.0, -4.216, 0.004),
    ("bike", "cglb-2048"): (34102.8, 38936.7, -3.811, 0.003),
    ("bike", "cglb-1024"): (30493.9, 35351.8, -3.403, 0.005),
    ("elevators", "iterative"): (-4709.0, -4705.1, 0.407, 0.353),
    ("elevators", "sgpr-4096"): (-4675.3, -4653.3, 0.386, 0.354),
    ("elevators", "cglb-4096"): (-4669.8, -4659.1, 0.386, 0.354),
    ("elevators", "cglb-2048"): (-4677.9, -4656.4, 0.387, 0.355),
    ("elevators", "cglb-1024"): (-4712.0, -4670.0, 0.392, 0.356),
    ("pol", "iterative"): (13552.5, -7641.5, -0.935, 0.079),
    ("pol", "sgpr-4096"): (9057.7, 9624.0, -1.172, 0.078),
    ("pol", "cglb-4096"): (9377.1, 9862.2, -1.201, 0.077),
    ("pol", "cglb-2048"): (8248.6, 9248.0, -1.126, 0.080),
    ("pol", "cglb-1024"): (7250.7, 8694.2, -1.057, 0.083),
    ("kin40k", "iterative"): (23859.0, None, -0.454, 0.087),
    ("kin40k", "sgpr-4096"): (7486.0, None, -0.705, 0.107),
    ("kin40k", "cglb-4096"): (12244.2, None, -0.919, 0.086),
    ("kin40k", "cglb-2048"): (10028.6, None, -0.826, 0.088),
    ("kin40k", "cglb-1024"): (7260.0, None, -0.714, 0.093),
    ("protein", "iterative"): (-25703.9, None, 0.897, 0.531),
    ("protein", "sgpr-4096"): (-27714.6, None, 0.798, 0.541),
    ("protein", "cglb-4096"): (-26570.7, None, 0.749, 0.522),
    ("protein", "cglb-2048"): (-27442.0, None, 0.771, 0.529),
    ("protein", "cglb-1024"): (-28243.7, None, 0.790, 0.535),
    ("keggundirected", "iterative"): (-21659.7, None, 1.310, 0.117),
    ("keggundirected", "sgpr-4096"): (-29837.5, None, -0.710, 0.118),
    ("keggundirected", "cglb-2048"): (-29751.7, None, -0.708, 0.119),
    ("keggundirected", "cglb-1024"): (-29728.9, None, -0.707, 0.120),
}
NUMBERS = ("evidence", "exact_evidence", "nlpd", "rmse")
Row = dict[str, Any]


def overrides(data: str, method: str, inducing: int, split: int, quick: bool, steps: int) -> list:
    """Options of the run of one cell."""
    fraction = 2000.5 / SIZES[data] if quick else 0.67
    common = [
        f"data={data}",
        f"data.split={split}",
        f"data.train_fraction={fraction}",
        "experiment=cglb_protocol",
        f"trainer.max_steps={steps}",
        *QUIET,
        "trainer.baselines=false",
    ]
    if method == "cglb":
        return [*common, f"approx.num_inducing={inducing}"]
    kept = [o for o in common if not o.startswith("experiment=")]
    kept += ["kernel=matern32", "init=constants", "likelihood.noise_variance=1.0"]
    if method == "sgpr":
        kept += ["approx=sgpr", "selector=greedy", "approx.fit_noise=false"]
        return [*kept, f"approx.num_inducing={inducing}"]
    # the published stopping rule is met before the first step, see experiments/iterative
    kept += ["approx=exact", "approx.solver=iterative", "optimizer=adam"]
    return [*kept, "likelihood.noise_floor=1e-4", "objective.iterative.kind_of_probes=gaussian"]


def row_of(folder: Path) -> Row:
    """A row from a finished run folder, with the exact evidence where that is affordable."""
    metrics, config, environment = Finished.of(folder)
    inducing = config.approx.get("num_inducing")
    model = {"CGLB": "cglb", "SGPR": "sgpr"}.get(metrics["model.name"], "iterative")
    num_train = int(config.facts.num_train)
    return {
        "data": metrics["data.name"],
        "method": model if inducing is None else f"{model}-{inducing}",
        "split": metrics["data.split"],
        "num_train": num_train,
        "protocol": "ones" if config.init._target_.endswith("ConstantInitialisation") else "subset",
        "evidence": metrics["train.evidence"],
        "exact_evidence": exact_evidence(folder, config) if num_train <= EXACT_UP_TO else None,
        "nlpd": metrics["test.mnlp"],
        "rmse": metrics["test.rmse"],
        "coverage_95": metrics["test.coverage_95"],
        "evaluations": metrics["train.steps"],
        "stopped": metrics["train.stopped"],
        "seconds": metrics["train.seconds"],
        "peak_mib": metrics["memory.peak_mib"],
        "num_threads": environment["num_threads"],
        "device": environment["device_name"],
        "git_commit": environment["git_commit"],
        "date": date.today().isoformat(),
    }


@torch.no_grad()
def exact_evidence(folder: Path, config: DictConfig) -> float:
    """Log marginal likelihood by Cholesky at the learned hyperparameters."""
    data = load_data(build(config, "data"), task="regression")
    model = build_model(config).double()
    model.load_state_dict(load_checkpoint(folder / "checkpoint.pt")["model"])
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    return float(ExactMLL().evidence(exact, data.train_x.double(), data.train_y.double()).value)


def table(rows: list[Row]) -> str:
    """RESULTS.md: ours beside the published medians."""
    lines = [
        "# CGLB, SGPR and the iterative GP",
        "",
        "Written by `experiments/cglb/comparison.py` from `rows.json`. Standardised targets, nats;",
        "medians over splits. Exact evidence: Cholesky at the learned hyperparameters (up to",
        f"{EXACT_UP_TO:,} training points). Published: Burt's thesis, table 4.1 (one V100). Start",
        "`ones`: the published protocol; `subset`: an exact GP on 1,000 points. The published",
        "figures belong to the whole training set (67 %), not to rows with fewer points.",
        "In bike two inputs determine the target; its row shows how small the noise becomes.",
        "Targets of bike, elevators and keggundirected are logarithms, those of protein",
        "log(1 + RMSD). Column `at the cap`: runs that ended at the largest number of evaluations",
        "allowed, not by convergence. From the published start SciPy's L-BFGS takes SGPR with 64",
        "points on elevators to where all targets are noise; the same run with optimizer=adam,",
        "optimizer.groups.hyperparameters.lr=0.01 and trainer.max_steps=1500 does not end there.",
        "The bound of bike with 1,024 points rises by 0.7 % from 150 to 400 evaluations, and is",
        "5.7 % below the published one after 2,000. With 64 points on 2,000 rows it rises by 2.1 %",
        "from 410 to 2,000 evaluations, so that these explain a part of the difference; the rest",
        "is open (the published splits are not known, and one of ours is run).",
        "",
        "| data | n | method | start | splits | evidence | exact evidence | NLPD | RMSE | 95 % | "
        "evaluations | at the cap | seconds | MiB | published: evidence, exact, NLPD, RMSE |",
        "|" + "---|" * 15,
    ]
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["data"], row["num_train"], row["method"], row["protocol"]].append(row)
    for (data, num_train, method, protocol), members in sorted(groups.items()):

        def median(key: str, members: list[Row] = members) -> float | None:
            values = [m[key] for m in members if m[key] is not None]
            return statistics.median(values) if values else None

        whole = num_train == int(0.67 * SIZES[data])
        published = PUBLISHED.get((data, method)) if whole else None
        cells = [data, f"{num_train:,}", method, protocol, str(len(members))]
        cells += [number(median(key), key) for key in NUMBERS]
        cells += [f"{median('coverage_95'):.3f}"]
        cells += [f"{median('evaluations'):.0f}", str(sum(map(capped, members)))]
        cells += [f"{median(key):.0f}" for key in ("seconds", "peak_mib")]
        cells.append(
            "-"
            if published is None
            else ", ".join(number(v, k) for v, k in zip(published, NUMBERS, strict=True))
        )
        lines.append("| " + " | ".join(cells) + " |")
    machines = sorted({f"{r['device']}, {r['num_threads']} threads, {r['date']}" for r in rows})
    commits = origin(tally([{"commit": r["git_commit"]} for r in rows]))
    judged = [verdict(what, ok) for what, ok in accept(rows).items()]
    lines += ["", *judged, "", *(f"- {m}" for m in machines), f"- {commits}"]
    return "\n".join([*lines, *training()]) + "\n"


def capped(row: Row) -> bool:
    """Whether a run ended at its largest number of evaluations."""
    return "max_steps=" in row["stopped"]


def number(value: float | None, key: str) -> str:
    return "-" if value is None else f"{value:.1f}" if "evidence" in key else f"{value:.3f}"


def accept(rows: list[Row]) -> Checks:
    """Checks of the rows: those of any scale, then those against the published figures."""
    bounds = [r for r in rows if r["exact_evidence"] is not None and r["method"] != "iterative"]
    below = sum(
        r["evidence"] <= r["exact_evidence"] + 1e-6 * abs(r["exact_evidence"]) for r in bounds
    )
    keyed = {(r["data"], r["num_train"], r["split"], r["protocol"], r["method"]): r for r in rows}
    pairs = [
        (r, keyed[other])
        for key, r in keyed.items()
        if key[-1].startswith("cglb")
        and (other := (*key[:-1], key[-1].replace("cglb", "sgpr"))) in keyed
    ]
    sets = {c["data"] for c, _ in pairs}
    lower = [(c, s) for c, s in pairs if c["evidence"] < s["evidence"]]
    below_sgpr = {c["data"] for c, _ in lower}
    named = [
        f"{c['data']} {c['method']} of {c['num_train']:,} rows by "
        f"{s['evidence'] - c['evidence']:.1f} nats"
        + " with both at the cap on evaluations"
        * (capped(c) and capped(s))
        for c, s in lower
    ]
    stuck = [f"{r['data']} {r['method']} split {r['split']}" for r in rows if r["rmse"] > 0.95]
    checks: Checks = {
        f"bounds below the exact evidence: {below} of {len(bounds)} runs": below == len(bounds),
        f"the bound of CGLB is at least that of SGPR with as many inducing points on the same "
        f"split, on five of the six sets: {len(pairs) - len(lower)} of {len(pairs)} pairs, on "
        f"{len(sets - below_sgpr)} of {len(sets)} sets (lower: {', '.join(named) or 'none'})": (
            enough(len(sets - below_sgpr), len(below_sgpr))
        ),
        "no bound is infinite or not a number": all(math.isfinite(r["evidence"]) for r in rows),
        f"no run explains all targets as noise (RMSE near 1: {', '.join(stuck) or 'none'})": (
            not stuck
        ),
    }
    for data in ("pol", "bike"):
        here = [(c, s) for c, s in pairs if c["data"] == data and s["exact_evidence"] is not None]
        checks[
            f"{data}: the exact evidence at CGLB's hyperparameters is at least that at SGPR's"
        ] = all(c["exact_evidence"] >= s["exact_evidence"] for c, s in here) if here else None
    missing = []
    for (data, method), (evidence, _, nlpd, rmse) in PUBLISHED.items():
        members = [
            r
            for r in rows
            if r["data"] == data
            and r["method"] == method
            and r["protocol"] == "ones"  # the published start
            and r["num_train"] == int(0.67 * SIZES[data])
        ]
        if not members:
            missing.append(f"{data} {method}")
        elif method != "iterative":
            keys = ("evidence", "nlpd", "rmse")
            found = {key: statistics.median(r[key] for r in members) for key in keys}
            near = BIKE_NLPD if data == "bike" else 0.05
            what = f"{data} {method}, {len(members)} of 3 splits: NLPD within {near} of the "
            checks[what + "published, RMSE within 0.01, evidence within 3 %"] = (
                abs(found["nlpd"] - nlpd) <= near
                and abs(found["rmse"] - rmse) <= 0.01
                and abs(found["evidence"] / evidence - 1.0) <= 0.03
            )
    checks[f"published rows: {', '.join(missing)}"] = None
    return checks


def enough(passed: int, failed: int) -> bool | None:
    """Whether five of the six sets pass; None while the sets run do not tell."""
    return True if passed >= 5 else False if failed > 1 else None


BIKE_NLPD = 0.5
"""Tolerance of the NLPD on bike, whose noise reaches its lower bound."""


def training() -> list[str]:
    """Section on training, from traces.json."""
    if not TRACES.exists():
        return []
    records = sorted(json.loads(TRACES.read_text()), key=itemgetter("data", "rows", "inducing"))
    keys = ("evaluations", "best bound", *STEPS)
    lines = [
        "",
        "## Steps of conjugate gradients over training, L-BFGS against Adam",
        "",
        "Written by `experiments/cglb/traces.py` to `traces.json`; every hyperparameter starts at",
        "1. The thesis has protein and elevators with all training rows and M = 100 to 2,048. The",
        "bound of the iterative GP is an estimate of the evidence; its preconditioner has rank M,",
        "its optimiser is Adam, and its ten probes are drawn again at every step.",
        *(sentence for record in records for sentence in adam_higher(record)),
        "",
        "| data | n | M | run | " + " | ".join(keys) + " | all solves converged |",
        "|" + "---|" * (len(keys) + 5),
    ]
    checks: Checks = {}
    for record in records:
        where = [record["data"], f"{record['rows']:,}", str(record["inducing"])]
        for name, row in record["summary"].items():
            cells = [*where, name, *(f"{row[key]:.6g}" for key in keys)]
            lines.append(f"| {' | '.join(cells)} | {row['all solves converged']} |")
        checks |= checks_of_training(record)
    checks |= more_points_fewer_steps(records)
    pictures = ["![Steps](cg_steps.png)", "", "![Optimisers](optimisers.png)", ""]
    judged = [verdict(what, ok) for what, ok in checks.items()]
    commits = origin(tally([{"commit": record["commit"]} for record in records]))
    return [*lines, "", *pictures, *judged, "", f"- {commits}"]


NEAR_BEST = 30.0
"""Nats below the best bound of a setting."""


def adam_higher(record: dict[str, Any]) -> list[str]:
    """How soon L-BFGS and Adam near the best bound, where Adam's final one is higher."""
    names = ("warm start", "cold start", "adam")
    tops = {name: record["summary"][name]["best bound"] for name in names}
    best = max(tops.values())
    if tops["adam"] <= tops["warm start"]:
        return []
    runs = {name: record["runs"][name] for name in names}
    near = {
        name: next((i for i, r in enumerate(run, 1) if r["bound"] >= best - NEAR_BEST), None)
        for name, run in runs.items()
    }
    return [
        f"{record['data']}, M = {record['inducing']}: L-BFGS (warm start) is within "
        f"{NEAR_BEST:.0f} nats of the best bound",
        f"after {near['warm start']} evaluations, Adam after {near['adam']}; Adam ends "
        f"{tops['adam'] - tops['warm start']:.1f} nats higher, at other hyperparameters.",
    ]


def checks_of_training(record: dict[str, Any]) -> Checks:
    """Checks of one setting."""
    at = f"{record['data']}, M = {record['inducing']}"
    runs = record["summary"]
    warm, cold, adam = (runs[name] for name in ("warm start", "cold start", "adam"))
    first, last = (warm[key] for key in STEPS)
    checks: Checks = {
        f"{at}: warm start: median steps in the last quarter at most 3 and a third of the first": (
            last <= min(3.0, first / 3.0)
        ),
        f"{at}: warm starts need no more steps than cold ones in the last quarter": last
        <= cold[STEPS[1]],
        f"{at}: L-BFGS reaches a higher bound than Adam": warm["best bound"] > adam["best bound"],
    }
    if "iterative GP" in runs:
        early, late = (runs["iterative GP"][key] for key in STEPS)
        checks[f"{at}: the iterative GP needs no fewer steps in the last quarter"] = late >= early
    return checks


def more_points_fewer_steps(records: list[dict[str, Any]]) -> Checks:
    """Cold starts, as warm ones may end at no steps at all; records in the order of M."""
    checks: Checks = {}
    for (data, rows), group in groupby(records, key=itemgetter("data", "rows")):
        found = [(r["inducing"], r["summary"]["cold start"][STEPS[1]]) for r in group]
        if len(found) > 1:
            sizes = ", ".join(str(m) for m, _ in found)
            checks[
                f"{data}, n = {rows:,}: more inducing points ({sizes}) need no more steps from "
                "cold starts in the last quarter"
            ] = all(a[1] >= b[1] for a, b in pairwise(found))
    return checks


STEPS = ("median steps, first quarter", "median steps, last quarter")


def main() -> None:
    parser = argument_parser(__doc__, quick="2,000 training rows, minutes")
    parser.add_argument("--data", nargs="*", choices=SIZES, default=["elevators", "pol", "bike"])
    parser.add_argument(
        "--methods",
        nargs="*",
        choices=("cglb", "sgpr", "iterative"),
        default=["cglb", "sgpr", "iterative"],
    )
    parser.add_argument("--inducing", nargs="*", type=int)
    parser.add_argument("--splits", nargs="*", type=int, default=[0])
    parser.add_argument("--steps", type=int, help="evaluations of an objective at most")
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "cglb_comparison")
    parser.add_argument("--from", dest="folders", nargs="*", type=Path, default=None)
    options = parser.parse_args()
    rows: list[Row] = json.loads(ROWS.read_text()) if ROWS.exists() else []

    def add(folder: Path) -> None:
        row = row_of(folder)
        same = itemgetter("data", "method", "split", "num_train", "protocol")
        with locked(HERE):
            kept = json.loads(ROWS.read_text()) if ROWS.exists() else []
            rows[:] = merged(kept, [row], same)
            write_atomically(ROWS, json.dumps(rows, indent=1) + "\n")
            write_atomically(HERE / "RESULTS.md", table(rows))

    inducing = options.inducing or ([64, 256] if options.quick else [1024])
    steps = options.steps or (300 if options.quick else 2000)
    for folder in options.folders or []:
        add(folder)
    methods = options.methods if options.folders is None else []
    for data, split, method in product(options.data, options.splits, methods):
        for m in inducing if method != "iterative" else [0]:
            scale = "quick" if options.quick else "full"
            folder = options.runs / f"{scale}-{data}-{method}-{m}-{split}"
            train_in(folder, overrides(data, method, m, split, options.quick, steps))
            add(folder)
    if not rows:
        sys.exit("error: no rows yet")
    write_atomically(HERE / "RESULTS.md", table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
