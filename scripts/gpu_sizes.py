"""Stage of ``gpu_hour.py``: single steps at sizes that take minutes to hours on a CPU."""

from __future__ import annotations

import torch
from bench_nearest import against_size
from bench_ski import ours, problem, theirs
from gpu_machine import LENGTHSCALE, Machine, catch_errors, run_train_py, write_row

from gpx.kernels import RBF
from gpx.methods.grid.axes import CartesianGrid, GriddedRows
from gpx.methods.grid.gaps import GapOptions, solve_gaps
from gpx.methods.grid.system import GridSystem
from gpx.operators import KernelMatrix

GRID_VECTORS = 10
"""Largest memory of a solve on a grid with gaps, in vectors over all cells."""
ALEXNET_STEPS = 20_000
"""Steps of ``experiments/deep/alexnet.py --full``."""


def sizes(machine: Machine) -> None:
    """A solve on a grid with gaps, products, and steps of SKI, SWSGP and a convolutional network.

    The most important ones come first, as the stage may be stopped.
    """
    for part in (grid_solve, million_points, alexnet, nearest_step, ski_steps):
        if machine.left() < 10:
            write_row(part.__name__.replace("_", " "), passed=None, note="no time left")
            continue
        part(machine)


def grid_solve(machine: Machine) -> None:
    """Infer 5 * 10^7 cells, a fifth of them without data, and measure memory in grid vectors."""
    side = machine.size(370, 10)
    name = f"grid of {side**3:,} cells, a fifth missing: solve"
    with catch_errors(name):
        double = {"dtype": torch.float64, "device": machine.device}
        axis = torch.linspace(0.0, 1.0, side, **double)
        draws = torch.Generator(machine.device).manual_seed(0)
        order = torch.randperm(side**3, generator=draws, device=machine.device)
        missing = side**3 // 5
        rows = GriddedRows(
            CartesianGrid((axis[:, None],) * 3, ((0,), (1,), (2,))),
            order[missing:].sort().values,
            order[:missing].sort().values,
        )
        del order
        wave = (9.0 * axis).sin()
        field = wave[:, None, None] + wave[:, None] * wave
        target = field.flatten()[rows.cells]
        target += 0.1 * torch.randn(len(target), generator=draws, **double)
        del field
        factor = torch.exp(-0.5 * ((axis[:, None] - axis) / 0.15).square())
        held = 0
        if machine.is_gpu:
            torch.cuda.reset_peak_memory_stats(machine.device)
            held = torch.cuda.memory_allocated(machine.device)
        steps: list[int] = []

        def solve() -> None:
            system = GridSystem([factor] * 3, axis.new_tensor(0.05), rows)
            found = solve_gaps(system, target, GapOptions("fill"))
            assert found.report is not None
            steps.append(found.report.iterations)

        seconds = machine.seconds(solve, 1)
        vectors = None
        if machine.is_gpu:
            vectors = (torch.cuda.max_memory_allocated(machine.device) - held) / (8 * side**3)
        write_row(
            name, value=seconds, unit="s",
            passed=None if vectors is None else vectors <= GRID_VECTORS,
            note=f"{steps[-1]} steps to 1e-6; memory beside rows and targets: "
            f"{'not measured' if vectors is None else f'{vectors:.1f}'} grid vectors (wanted: at "
            f"most {GRID_VECTORS})",
        )  # fmt: skip


def million_points(machine: Machine) -> None:
    """A product of the kernel matrix of 10^6 points, which is never stored."""
    n = machine.size(1_000_000, 1000)
    name = f"product, n = {n:,}, 11 columns, float32"
    with catch_errors(name):
        x, right = machine.normal(n, 8), machine.normal(n, 11, seed=1)
        kernel = RBF(8, lengthscale=LENGTHSCALE).to(machine.device).requires_grad_(False)
        matrix = KernelMatrix.of(kernel, x, memory_budget=2**30)
        seconds = machine.seconds(lambda: matrix @ right, 1)
        write_row(name, value=seconds, unit="s", note=f"backend: {matrix.backend}")


def alexnet(machine: Machine) -> None:
    """Steps of AlexNet with all channels under 4,096 random features."""
    steps = machine.size(200, 2)
    name = "AlexNet, cnn_sorf, all channels: a step"
    options = [
        *("approx=cnn_sorf", f"approx.backbone=alexnet{'_quarter' if machine.quick else ''}"),
        *("data=fields", f"data.num_images={machine.size(2000, 60)}", "data.num_classes=10"),
        *(f"trainer.max_steps={steps}", "approx.predict_samples=5"),
    ]
    with catch_errors(name):
        done = run_train_py(machine, name, options, min(60.0, machine.left() - 5))
        if done is not None:
            step = done[0]["train.seconds"] / steps
            note = f"{ALEXNET_STEPS:,} steps: {ALEXNET_STEPS * step:,.0f} s"
            write_row(name, value=1e3 * step, unit="ms", note=note)


def nearest_step(machine: Machine) -> None:
    """A step of SWSGP with 100,000 inducing points."""
    m = machine.size(100_000, 200)
    with catch_errors(f"SWSGP, M = {m:,}"):
        (found,) = against_size([m], machine.size(20, 1), str(machine.device))
        for kind in ("learned Z", "fixed Z"):
            write_row(f"SWSGP, M = {m:,}, {kind}", value=found[f"{kind}, ms a step"], unit="ms")


def ski_steps(machine: Machine) -> None:
    """Evidence and gradient of SKI on one axis and on two."""
    for rows, inputs, grid in ((100_000, 1, 10_000), (1_000_000, 2, 300)):
        n, size = machine.size(rows, 500), machine.size(grid, 30)
        name = f"SKI, n = {n:,}, {inputs} input{'s' * (inputs > 1)}, {size:,} points an axis"
        if machine.left() < 10:
            write_row(name, passed=None, note="no time left")
            continue
        with catch_errors(name):
            x, y = (t.to(machine.device) for t in problem(n, inputs))
            seconds = machine.seconds(ours(x, y, size, RBF(inputs, 1.0, 1.0)), 3)
            peer = machine.seconds(theirs(x, y, size), 3) if inputs == 1 else None
            write_row(name, value=seconds, unit="s", peer=peer, peer_name="GPyTorch, KISS-GP")
