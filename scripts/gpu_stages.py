"""Stages of ``gpu_hour.py``; every result is a line of JSON on standard output.

    python scripts/gpu_stages.py ceilings --device cuda

If a part of a stage fails, a row says why, and the stage continues with the next part.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from functools import partial
from typing import Any

import torch
from gpu_correctness import correctness
from gpu_machine import (
    DTYPES,
    LENGTHSCALE,
    ROOT,
    SILENT_RUN,
    SMALL_DATA,
    Machine,
    catch_errors,
    run_metrics,
    run_train_py,
    write_row,
)

from gpx.kernels import RBF
from gpx.linalg import RelativeResidual, conjugate_gradients
from gpx.linalg.replayed import solve_recordings, solves_recorded
from gpx.runs.environment import environment_record

# -- ceilings -------------------------------------------------------------------------------------


def ceilings(machine: Machine) -> None:
    """The device, and its rates of launches, copies, functions, products and factorisations."""
    record = environment_record(machine.device, 0, {})
    keys = ("versions", "device_name", "matmul", "gpu")
    write_row("machine", note=json.dumps({k: record[k] for k in keys}).replace('"', ""))
    with catch_errors("launch latency"):
        one = torch.zeros(1, device=machine.device)
        times = machine.seconds(lambda: [one.add_(1.0) for _ in range(1000)])
        write_row("launch latency", value=1e3 * times, unit="us a launch")
    count = machine.size(2**30, 2**20)
    with catch_errors("copy"):
        source = torch.empty(count, device=machine.device)
        target = torch.empty_like(source)
        found = machine.seconds(lambda: target.copy_(source))
        write_row("copy", value=8e-12 * count / found, unit="TB/s", better="higher")
    for name in ("exp", "cos"):
        with catch_errors(name):
            values = torch.zeros(count // 4, device=machine.device)
            found = machine.seconds(lambda v=values, n=name: getattr(torch, n)(v, out=v))
            write_row(f"{name}, float32", value=1e-12 * values.numel() / found, unit="1e12/s")
    n = machine.size(16384, 256)
    for dtype, precision in (("float64", "highest"), ("float32", "highest"), ("float32", "high")):
        label = f"product, {dtype}" + (", tf32" if precision == "high" else "")
        with catch_errors(label):
            torch.set_float32_matmul_precision(precision)
            a = machine.normal(n, n, dtype=DTYPES[dtype])
            found = machine.seconds(lambda a=a: a @ a)
            write_row(label, value=2e-12 * n**3 / found, unit="TFLOP/s", better="higher")
    torch.set_float32_matmul_precision("highest")
    for dtype in DTYPES:
        with catch_errors(f"Cholesky, {dtype}"):
            n = machine.size(20000, 200)
            a = torch.full((n, n), 0.5, dtype=DTYPES[dtype], device=machine.device)
            a.diagonal().add_(1.0)
            found = machine.seconds(lambda a=a: torch.linalg.cholesky_ex(a), 3)
            rate = 1e-12 * n**3 / 3 / found
            write_row(f"Cholesky, {dtype}", value=rate, unit="TFLOP/s", note=f"n = {n}")


# -- headline runs --------------------------------------------------------------------------------

MAIN_ROAD = ROOT / "experiments" / "main_road" / "rows.json"
"""Runs of the README, measured on one CPU core."""


def on_one_core(*options: str) -> tuple[tuple[str, ...], str, float | None]:
    """A headline run, the name of its peer, and its seconds on one CPU core, if measured."""
    rows = json.loads(MAIN_ROAD.read_text()).values()
    seconds = {tuple(row["settings"]): row["metrics"]["train.seconds"] for row in rows}
    return options, "one CPU core (experiments/main_road)", seconds.get(options)


HEADLINE: tuple[tuple[tuple[str, ...], str, float | None], ...] = (
    on_one_core("approx=qsgp", "data=kin40k"),
    on_one_core("approx=svgp", "data=kin40k", "kernel=matern32"),
    on_one_core("approx=sgpr", "data=kin40k", "kernel=matern32"),
    on_one_core("approx=vecchia", "data=kin40k"),
    (("approx=qsgp_inducing", "data=kin40k"), "one CPU core (docs/measured.md)", 279.0),
    (("approx=exact", "data=kin40k", "trainer.max_steps=20"), "", None),
)


HEADLINE_SECONDS = 60.0
"""Time limit of a headline run, from the start of its process."""


def headline(machine: Machine) -> None:
    """Commands of the README, on the device."""
    two_million_points(machine)
    for options, peer_name, peer in HEADLINE[: machine.size(len(HEADLINE), 2)]:
        name = "train.py " + " ".join(options)
        if machine.left() < 15:
            write_row(name, passed=None, note="no time left")
            continue
        words = [*options]
        if machine.quick:
            words += [*SMALL_DATA, "trainer.max_steps=2"]
            words += ["approx.num_basis=400"] * (options[0] == "approx=qsgp")
            words += ["approx.num_inducing=20"] * (options[0] == "approx=svgp")
        with catch_errors(name):
            done = run_train_py(machine, name, words, min(HEADLINE_SECONDS, machine.left() - 5))
            if done is None:
                continue
            found, _ = done
            write_row(
                name, value=found["train.seconds"], unit="s",
                peer=None if machine.quick else peer, peer_name=peer_name,
                note=f"rmse {found['test.rmse']:.4f}, mnlp {found['test.mnlp']:.4f}, evidence "
                f"{found['train.evidence']:.1f}, {found['train.steps']} steps, "
                f"{found['train.start.seconds']:.1f} s before the first, peak "
                f"{found['memory.peak_mib']:.0f} MiB",
            )  # fmt: skip


def two_million_points(machine: Machine) -> None:
    """Evidence and gradient of GRIEF at the size of the electric set, against its limits."""
    with catch_errors("GRIEF, evidence and gradient"):
        sys.path.insert(0, str(ROOT / "experiments" / "grief"))
        electric_size_step(machine)


def electric_size_step(machine: Machine) -> None:
    """The row of ``two_million_points``."""
    from electric_size import FUNCTIONS, MOST_BYTES, MOST_SECONDS, POINTS, measured

    points, functions = machine.size(POINTS, 4_000), machine.size(FUNCTIONS, 50)
    name = f"GRIEF, evidence and gradient, n = {points:,}, p = {functions:,}"
    if machine.left() < 15:
        write_row(name, passed=None, note="no time left")
        return
    with catch_errors(name):
        row = measured(points, functions, machine.device)
        held = row["total memory, MiB"]
        write_row(
            name, value=row["seconds"], unit="s",
            passed=row["seconds"] < MOST_SECONDS and held * 2**20 < MOST_BYTES,
            note=f"wanted: {MOST_SECONDS:.0f} s; {held:,.0f} MiB held, of at most "
            f"{MOST_BYTES / 2**20:,.0f}; the table: experiments/grief/electric_size.py",
        )  # fmt: skip


# -- profiles -------------------------------------------------------------------------------------


def profiles(machine: Machine) -> None:
    """Launches, kernels that take most time, and peak memory of short runs; a recorded solve."""
    recorded_solve(machine)
    data = SMALL_DATA if machine.quick else ("data=robot_arm",)
    few = machine.quick
    for name, options in {
        "svgp": ("approx=svgp", f"approx.num_inducing={20 if few else 512}"),
        "sgpr": ("approx=sgpr", f"approx.num_inducing={20 if few else 512}"),
        "qsgp": ("approx=qsgp", f"approx.num_basis={400 if few else 100000}"),
        "qsgp, stochastic": (
            "approx=qsgp", "optimizer=qsgp", f"approx.num_basis={400 if few else 100000}",
            f"approx.warm_start_size={100 if few else 5000}",
        ),
        "exact, iterative": ("approx=exact", "approx.solver=iterative"),
    }.items():  # fmt: skip
        if machine.left() < 10:
            write_row(f"profile, {name}", passed=None, note="no time left")
            continue
        with catch_errors(f"profile, {name}"):
            words = [*data, *options, "init.max_evaluations=3", "init.num_points=100", *SILENT_RUN]
            words += ["trainer.baselines=false", "trainer.max_steps=3"]
            words += [f"trainer.device={machine.device}"]
            if machine.is_gpu:
                torch.cuda.reset_peak_memory_stats(machine.device)
            with torch.profiler.profile(activities=activities(machine)) as seen:
                found = run_metrics(words)
            write_profile(machine, name, seen, found)


def activities(machine: Machine) -> list[torch.profiler.ProfilerActivity]:
    """What a profile observes."""
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU, kinds.CUDA] if machine.is_gpu else [kinds.CPU]


def top_kernels(machine: Machine, seen: Any) -> str:
    """Names and times of what took most time: kernels on a GPU, operations on a CPU."""
    busy = "self_device_time_total" if machine.is_gpu else "self_cpu_time_total"
    events = seen.key_averages()
    if machine.is_gpu:  # operations of torch have the time of their kernels once more
        events = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    top = sorted(events, key=lambda e: -getattr(e, busy, 0))[:8]
    return ", ".join(f"{e.key[:50]} {1e-3 * getattr(e, busy, 0):.2g} ms ({e.count})" for e in top)


def recorded_solve(machine: Machine) -> None:
    """A solve whose steps are recorded as a CUDA graph, beside the same steps as they are."""
    n, steps = machine.size(4000, 100), 100
    name = f"{steps} steps of conjugate gradients, n = {n:,}, 11 columns: recorded"
    with catch_errors(name):
        x, right = machine.normal(n, 8, dtype=torch.float64), machine.normal(n, 11, seed=1).double()
        kernel = RBF(8, lengthscale=LENGTHSCALE).to(machine.device, torch.float64)
        matrix = kernel.requires_grad_(False).evaluate(x, x)
        matrix.diagonal().add_(1e-4)
        solve = partial(
            conjugate_gradients, matrix, right, stop=RelativeResidual(1e-30), max_iterations=steps,
            verify=False, on_failure="return",
        )  # fmt: skip
        found = machine.seconds(solve)
        with solves_recorded(None):
            plain = machine.seconds(solve)
            with torch.profiler.profile(activities=activities(machine)) as seen:
                solve()
                machine.wait()
        refused = "; ".join(solve_recordings().refused.values())
        write_row(
            name, value=1e3 * found, unit="ms", peer=1e3 * plain, peer_name="steps as they are",
            note="; ".join(filter(None, (refused, top_kernels(machine, seen)))),
        )  # fmt: skip


def write_profile(machine: Machine, name: str, seen: Any, metrics: dict[str, Any]) -> None:
    """Write the rows of one profile."""
    events = seen.key_averages()
    launches = sum(e.count for e in events if "LaunchKernel" in e.key)
    said = top_kernels(machine, seen)
    write_row(f"profile, {name}: launches of the run", value=launches, note=said)
    peak = metrics["memory.peak_mib"]
    write_row(f"profile, {name}: peak memory", value=peak, unit="MiB")


# -- recipes --------------------------------------------------------------------------------------

RECIPES = (
    ("experiment=qsgp_kin40k", "published RMSE, 10^5 stochastic steps", 0.174),
    ("experiment=exact_kin40k", "", None),
    # the electric set is too large to be carried to a machine without a network
    (
        "experiment=exact_houseelectric data=robot_arm data.num_points=1111112 trainer.max_steps=1",
        "",
        None,
    ),
)
FIRST_SHARE = 0.65
"""Share of the stage's time for the first recipe, whose steps should take two minutes."""


def recipes(machine: Machine) -> None:
    """Runs of published length; each gets a share of the remaining time."""
    chosen = RECIPES[: machine.size(len(RECIPES), 1)]
    for number, (recipe, peer_name, peer) in enumerate(chosen):
        if machine.left() < 15:
            write_row(recipe, passed=None, note="no time left")
            continue
        share = FIRST_SHARE if number == 0 else 1.0 / (len(chosen) - number)
        words = recipe.split()
        if machine.quick:
            words += [*SMALL_DATA, "trainer.max_steps=3", "approx.num_basis=400"]
            words += ["objective.columns=100", "objective.diagonal_columns=100"]
            words += ["objective.support_rows=20"]
        with catch_errors(recipe):
            done = run_train_py(machine, recipe, words, machine.left() * share - 5)
            if done is None:
                continue
            found, seconds = done
            write_row(
                recipe, value=found["test.rmse"], unit="rmse", peer=peer, peer_name=peer_name,
                seconds=found["train.seconds"],
                note=f"{seconds:.0f} s in all, {found['train.seconds']:.0f} s of training, "
                f"{found['train.steps']} steps",
            )  # fmt: skip


def compare(machine: Machine) -> None:
    """Comparisons with GPyTorch.

    GPyTorch imports KeOps, whose files break if several processes write them, as those of the
    stage ``correctness`` would. So it is only imported here and in ``large``.
    """
    from gpu_comparisons import peers

    peers(machine)


def large(machine: Machine) -> None:
    """Single steps at large sizes; one is compared with GPyTorch."""
    from gpu_sizes import sizes

    sizes(machine)


STAGES = {
    "ceilings": ceilings,
    "correctness": correctness,
    "headline": headline,
    "peers": compare,
    "profiles": profiles,
    "sizes": large,
    "recipes": recipes,
}


def main() -> None:
    """Run a stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit from now on")
    parser.add_argument(
        "--until", type=float, help="end of the time in seconds since 1970; overrides --seconds"
    )
    options = parser.parse_args()
    # the time that the imports above have taken counts
    left = options.seconds if options.until is None else options.until - time.time()
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", message=".*UnconvergedWarning.*")
    STAGES[options.stage](Machine(options.device, options.quick, left))


if __name__ == "__main__":
    main()
