"""Kernel launches and waits per training step of every approximation, counted without a GPU.

    python scripts/launches.py                                   # the table
    python scripts/launches.py approx=svgp approx.num_inducing=512    # one run, by operation
    python scripts/launches.py --places approx=svgp              # by the line of gpx that asks

Runs train on tensors that claim to be on CUDA (``tests/oracles/launches.py``, which says what is
not seen). The table takes small sizes: how many rows, functions and columns there are hardly
changes the number of launches.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "oracles")]

import torch  # noqa: E402
from launches import most, steps_of  # noqa: E402

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
}  # fmt: skip
"""Options of the runs of the table; ``approx`` is the name where none is given."""


def table() -> None:
    """Print launches and waits of every run as they come."""
    print("| path | launches a step | waits a step |\n|---|---|---|")
    for name, options in TABLE.items():
        chosen = (
            options
            if any(o.startswith("approx=") for o in options)
            else (*options, f"approx={name}")
        )
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                steps = steps_of(*chosen)
            found = " | ".join(f"{n:,}" for n in most(steps)) if steps else "one step | "
        except Exception as error:  # a table of all says which one failed, and why
            found = f"failed: {type(error).__name__} {str(error).splitlines()[0][:80]} | "
        print(f"| {name} | {found} |", flush=True)


def main(arguments: list[str]) -> None:
    """The table, or one run in detail."""
    torch.set_num_threads(1)
    options = [a for a in arguments if a != "--places"]
    if not options:
        table()
        return
    for step in steps_of(*options, places="--places" in arguments):
        print(step.launches.total(), "launches,", step.waits.total(), "waits")
        for name, count in step.launches.most_common(20):
            print(f"{count:>6}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
