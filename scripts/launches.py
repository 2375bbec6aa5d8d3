"""Kernel launches and waits per training step of every approximation, counted without a GPU.

    python scripts/launches.py                                   # the table; takes minutes
    python scripts/launches.py --write           # also write experiments/gpu/launches.json
    python scripts/launches.py --write ski svgp  # measure these rows again and keep the others
    python scripts/launches.py approx=svgp approx.num_inducing=512    # one run, by operation
    python scripts/launches.py --places approx=svgp              # by line of gpx

Runs train on tensors that claim to be on CUDA; ``tests/oracles/launches.py`` says what this cannot
count. The table uses small sizes, because the number of rows, functions and columns hardly changes
the number of launches.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / "oracles"), str(REPOSITORY / "experiments")]

import torch  # noqa: E402
from gpu_tables import CLASSES, TWO_TARGETS, with_tables  # noqa: E402
from launches import Step, most, steps_of  # noqa: E402

from gpx.training.interrupt import Interrupted  # noqa: E402

DIGITS = ("data=digits", "data.train_size=200", "trainer.max_steps=3")
DATA = ("data.num_points=3000", "trainer.max_steps=3")
FEW = ("data.num_points=600", "trainer.max_steps=3")
TABLE = {
    "exact": FEW,
    "exact, iterative": (
        *FEW, "approx=exact", "approx.solver=iterative", "approx.iterative.rank=200",
    ),
    "sgpr": (*DATA, "approx=sgpr", "approx.num_inducing=64"),
    "cglb": (*FEW, "approx=cglb", "approx.num_inducing=64"),
    "fitc": (*DATA, "approx=fitc", "approx.num_inducing=64"),
    "pic": (*DATA, "approx=pic", "approx.num_inducing=64"),
    "svgp": (*DATA, "approx=svgp", "approx.num_inducing=64"),
    "svgp, by Adam": (*DATA, "approx=svgp", "optimizer=svgp", "approx.num_inducing=64"),
    "qsgp, block step": (
        *DATA, "approx=qsgp", "approx.num_basis=4000", "approx.block_columns=1000",
    ),
    "qsgp, stochastic step": (
        *DATA, "approx=qsgp", "optimizer=qsgp", "approx.num_basis=4000",
        "approx.warm_start_size=500",
    ),
    "qsrvm": (*FEW, "approx=qsrvm", "approx.sweeps=2"),
    "reweighted, MALA": (
        *DATA, "approx=reweighted", "approx.num_basis=40", "optimizer.burn_in=3",
        "optimizer.iterations=6", "optimizer.thin=2",
    ),
    "grief": (*DATA, "approx=grief", "approx.num_eigenfunctions=60"),
    "ski": (*DATA, "approx=ski", "projection=unit", "approx.grid_size=40"),
    "ssgp": (*DATA, "approx=ssgp", "approx.num_basis=40"),
    "direct": (*DATA, "approx=direct", "approx.num_basis=40"),
    "deep_rf": (*DATA, "approx=deep_rf", "approx.num_features=40"),
    "vecchia": (*FEW, "approx=vecchia"),
    "vnngp": (*FEW, "approx=vnngp", "approx.num_neighbours=6"),
    "swsgp": (*DATA, "approx=swsgp", "approx.num_inducing=64", "approx.num_neighbours=6"),
    "committee": (*DATA, "approx=committee"),
    "local_experts": DATA,
    "transductive": DATA,
    "mixture_of_experts": DATA,
    "sod": (*DATA, "approx.num_points=100"),
    "sor": (*DATA, "approx.num_inducing=64"),
    "dtc": (*DATA, "approx.num_inducing=64"),
    "fic": (*DATA, "approx.num_inducing=64"),
    "pitc": (*DATA, "approx.num_inducing=64"),
    "vssgp": (*DATA, "approx.num_basis=40"),
    "qsgp_inducing": (*DATA, "approx.rank=64"),
    "deep_svgp": (*DATA, "approx.num_inducing=64"),
    "grid": (
        "data=grid_stress", "data.field=rastrigin", "data.shape=[12,12]", "data.gap_share=0.2",
        "trainer.max_steps=3",
    ),
    "coregional": (*TWO_TARGETS, "trainer.max_steps=3"),
    "derivatives": (*TWO_TARGETS, "approx.with_respect_to=[0]", "trainer.max_steps=3"),
    "independent": (*TWO_TARGETS, "trainer.max_steps=3"),
    "fully_bayesian": (*DATA, "trainer.max_steps=3"),
    "fully_bayesian_sgpr": (*DATA, "approx.num_inducing=64", "trainer.max_steps=3"),
    "laplace": (*CLASSES, "trainer.max_steps=3"),
    "ep": (*CLASSES, "trainer.max_steps=3"),
    "vgp": (*CLASSES, "trainer.max_steps=3"),
    "elliptical_slice": (*CLASSES, "trainer.max_steps=3"),
    "svgp, classes": (
        *CLASSES, "approx=svgp", "likelihood=bernoulli", "approx.num_inducing=64",
        "trainer.max_steps=3",
    ),
    "direct_logistic": (*CLASSES, "approx.num_basis=40", "trainer.max_steps=3"),
    "direct_mixture": (*DATA, "approx.num_basis=40"),
    "direct_network": DATA,
    "dkl": (*DATA, "approx.num_inducing=64"),
    **dict.fromkeys(("cnn", "cnn_mcd", "cnn_rf", "cnn_sorf", "cnn_deep_rf"), DIGITS),
    **dict.fromkeys(("gpdnn", "svdkl", "conv_gp"), DIGITS),
}  # fmt: skip
"""Name -> options of the runs of the table; without ``approx=``, the name is its value."""
ASKED = {"svgp, by Adam": 154, "sgpr": 168, "qsgp, block step": 1000}
"""Name -> largest allowed number of launches per step."""
NOTES = (
    "Number of kernels that a training step would launch on a GPU (the step with the most), and",
    "how often the host waits for it; counted on a CPU with tensors that claim to be on CUDA,",
    "without compiled kernels. Small sizes: rows, functions and columns hardly change the number.",
    "Waits are counted at the lines of gpx that read a result. Recorded: launches of a later step,",
    "with what a GPU would record as a graph counted as one launch; empty if nothing is recorded.",
    "",
    "A step differs between methods. One of mixture_of_experts assigns all rows again and then",
    "makes up to 20 evaluations, which are counted unrecorded (a GPU records them); one of",
    "elliptical_slice moves all chains along their lines of hyperparameters together, and waits",
    "once for each of some five points of the lines, and for each sweep of expectation propagation",
    "there; direct_network runs its sweeps on the host. ski reads small results between its",
    "stages: the extent of the rows, the spectra of the axes, and whether the probes drawn so far",
    "are enough.",
)


def measured(name: str, *more: str, recorded: bool = False) -> list[Step]:
    """All steps but the first of a run of the table."""
    options = TABLE[name]
    named = any(o.startswith("approx=") for o in options)
    with with_tables(options if named else (*options, f"approx={name}")) as chosen:
        return steps_of(*chosen, *more, recorded=recorded)


def when_recorded(name: str) -> int | None:
    """Launches of a later step, with a GPU's recordings; None where nothing is recorded."""
    more = () if "reweighted" in name else ("trainer.max_steps=8",)
    steps = measured(name, *more, recorded=True)[:-1]  # the last one is logged
    replayed = [step.launches.total() for step in steps[3:] if step.launches["graph"]]
    return max(replayed, default=None)


def row_of(name: str) -> dict[str, Any]:
    """Launches and waits of the step of a run that has most of them; a failure is named."""
    launches, waits, places, recorded = None, None, "", None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            steps = measured(name)
            recorded = when_recorded(name) if steps else None
        if steps:
            launches, waits = most(steps)
            waiting = max(steps, key=lambda step: step.waits.total()).waits
            places = ", ".join(
                f"{count} {where.split()[0]}" for where, count in waiting.most_common(3)
            )
        else:
            places = "trains in one step"
    except Interrupted:  # by whoever wants the script to end
        raise
    except Exception as error:  # the table names the failure
        places = f"failed: {type(error).__name__} {str(error).splitlines()[0][:80]}"
    return {
        "path": name, "launches": launches, "recorded": recorded, "waits": waits, "where": places,
    }  # fmt: skip


def table(names: Sequence[str], written: bool) -> None:
    """Print launches and waits of runs of the table.

    Args:
        names: which ones.
        written: also write experiments/gpu/launches.json and its RESULTS.md, after every run; rows
            of other runs are kept as they are.
    """
    from record import earlier, write

    folder, title = REPOSITORY / "experiments" / "gpu", "Launches of a training step"
    rows = {
        row["path"]: row | {"recorded": row.get("recorded")}
        for row in earlier(folder / "launches.json")
    }
    print("| path | launches a step | recorded | waits a step |\n|---" + "|---" * 3 + "|")
    for name in names:
        rows[name] = row = row_of(name)
        cells = [row[key] for key in ("launches", "recorded", "waits", "where")]
        print("|", " | ".join(map(str, [name, *cells])), "|", flush=True)
        if not written:
            continue
        found = [rows[path] for path in TABLE if path in rows]
        by = {row["path"]: row["launches"] or math.inf for row in found}
        asked = {
            f"{path}: at most {most} launches": by.get(path, math.inf) <= most
            for path, most in ASKED.items()
        }
        asked["every path runs"] = not any(row["where"].startswith("failed") for row in found)
        write(folder, "launches", title, NOTES, found, asked)


def main(arguments: list[str]) -> None:
    """Print the table, or one run in detail."""
    torch.set_num_threads(1)
    options = [a for a in arguments if a not in ("--places", "--write")]
    if all("=" not in option for option in options):
        unknown = [name for name in options if name not in TABLE]
        if unknown:
            sys.exit(f"{', '.join(unknown)}: not in the table, which has {', '.join(TABLE)}")
        table(options or list(TABLE), "--write" in arguments)
        return
    for step in steps_of(*options, places="--places" in arguments):
        print(step.launches.total(), "launches,", step.waits.total(), "waits")
        for name, count in step.launches.most_common(20):
            print(f"{count:>6}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
