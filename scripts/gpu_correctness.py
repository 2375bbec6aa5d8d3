"""Stage of ``gpu_hour.py``: a device compared with the CPU, and with dense float64 products."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from drawn_alike import drawn_alike
from gpu_machine import (
    DTYPES,
    LENGTHSCALE,
    ROOT,
    SILENT_RUN,
    SMALL_DATA,
    Machine,
    backends,
    catch_errors,
    failure,
    in_process,
    run_metrics,
    write_row,
)
from gpu_tables import CLASSES, TWO_TARGETS, with_tables
from gpu_triton import triton_kernels
from torch import Tensor

from gpx.kernels import RBF, Matern12
from gpx.operators import KernelMatrix

FIVE_STEPS = {
    "exact": (),
    "exact, iterative": ("approx=exact", "approx.solver=iterative", "approx.iterative.rank=50"),
    "sgpr": ("approx.num_inducing=20",),
    "cglb": ("approx.num_inducing=20",),
    "fitc": ("approx.num_inducing=20",),
    "pic": ("approx.num_inducing=20",),
    "sod": ("approx.num_points=40",),
    "svgp": ("approx.num_inducing=20", "trainer.batch_size=100"),
    "qsgp": (
        "approx.num_basis=400", "approx.basis.block_frequencies=20", "approx.block_columns=100",
    ),
    "qsgp, stochastic": (
        "approx=qsgp", "optimizer=qsgp", "approx.num_basis=400",
        "approx.basis.block_frequencies=20", "approx.warm_start_size=100", "approx.block_solves=1",
    ),
    "qsgp_inducing": (),
    "qsgp_inducing, augmented": ("approx=qsgp_inducing", "approx.variance=augmented"),
    "qsrvm": ("approx.sweeps=2",),
    "reweighted": (
        "approx.num_basis=40", "optimizer.burn_in=10",
        "optimizer.iterations=20", "optimizer.thin=5",
    ),
    "grief": ("approx.num_eigenfunctions=30",),
    "ski": ("projection=unit", "approx.grid_size=12"),
    "ssgp": ("approx.num_basis=20",),
    "vssgp": ("approx.num_basis=20",),
    "vecchia": (),
    "vnngp": ("approx.num_neighbours=6",),
    "swsgp": ("approx.num_inducing=20", "approx.num_neighbours=6"),
    "committee": (),
    "direct": ("approx.num_basis=20",),
    "deep_rf": ("approx.num_features=40", "approx.predict_samples=3"),
    "deep_svgp": ("approx.num_inducing=20", "approx.predict_samples=3"),
    "local_experts": ("approx.num_experts=4",),
    "transductive": ("approx.num_experts=4",),
    "mixture_of_experts": (),
    "dkl": ("approx.num_inducing=20", "approx.pretrain_steps=3"),
    "direct_mixture": ("approx.num_basis=20", "approx.sweeps=2"),
    "direct_network": ("approx.starts=2", "approx.hidden=[2]", "approx.restarts=1"),
    "grid": (
        "data=grid_stress", "data.field=rastrigin", "data.shape=[12,12]", "data.gap_share=0.2",
    ),
    "coregional": TWO_TARGETS,
    "derivatives": (*TWO_TARGETS, "approx.with_respect_to=[0]"),
    "independent": TWO_TARGETS,
    "laplace": CLASSES,
    "ep": CLASSES,
    "vgp": CLASSES,
    "direct_logistic": (*CLASSES, "approx.num_basis=20"),
    "conv_gp": (
        "likelihood=gaussian", "approx.image_shape=[2,4]", "approx.patch_size=2",
        "approx.num_inducing=20",
    ),
    "cnn_rf": ("likelihood=gaussian", "approx.image_shape=[2,4]", "approx.predict_samples=3"),
}  # fmt: skip


ESTIMATES = {"exact, iterative": 0.05}
"""Allowed relative differences of runs that use another algorithm on a GPU: pivots are chosen in
blocks, which changes the estimate of the log determinant. All others agree to rounding."""


def correctness(machine: Machine) -> None:
    """The doctor, kernels, every approximation on both devices, and the tests for GPUs.

    Nothing is timed here, so the parts run side by side.
    """
    doctor = [sys.executable, "-m", "gpx.doctor", *["--keops"] * machine.is_gpu]
    parts: list[Callable[[], None]] = [lambda: command(machine, "doctor", doctor, 180)]
    if machine.is_gpu:
        parts.append(lambda: gpu_tests(machine))
    beside = [threading.Thread(target=part) for part in parts]
    for thread in beside:
        thread.start()
    triton_kernels(machine)
    kernel_products(machine)
    long_sums(machine)
    coincident_rows(machine)
    every_approximation(machine)
    for thread in beside:
        thread.join()


PROCESSES = 6
"""Processes that compare the approximations; each holds a context of the device."""


def every_approximation(machine: Machine) -> None:
    """Five steps of every approximation on both devices."""
    chosen = list(FIVE_STEPS)[:: 6 if machine.quick else 1]
    spawned = multiprocessing.get_context("spawn")
    count = machine.size(PROCESSES, 2)
    with concurrent.futures.ProcessPoolExecutor(count, mp_context=spawned) as pool:
        tasks = {pool.submit(compared, (name, str(machine.device))): name for name in chosen}
        try:
            for done in concurrent.futures.as_completed(tasks, timeout=max(5, machine.left() - 15)):
                with catch_errors(f"five steps, {tasks[done]}"):  # of a process that ended
                    write_row(**done.result())
        except TimeoutError:
            late = ", ".join(name for task, name in tasks.items() if not task.done())
            write_row("five steps: the rest", passed=None, note=f"no time left for {late}")
            for process in multiprocessing.active_children():
                process.kill()


def gpu_tests(machine: Machine) -> None:
    """Tests that need a GPU; only their files are collected, because all would take minutes."""
    name = "tests marked gpu"
    if importlib.util.find_spec("pytest") is None:
        write_row(name, passed=None, note="pytest is not installed")
        return
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(path) for path in every if "mark.gpu" in path.read_text()]
    # options of pyproject.toml name a plugin that may not be installed
    words = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-rfE"]
    words += ["-o", "addopts=--import-mode=importlib"]
    # the slow one is a row of the headline runs
    command(machine, name, [*words, "-m", "gpu and not slow", *files], machine.left() - 10)


def search_path() -> str:
    """PYTHONPATH with this repository first; the caller's may hold other packages."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def command(machine: Machine, name: str, words: list[str], limit: float) -> None:
    """Run a program, which passes if it ends with status 0 in time."""
    with catch_errors(name):
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | {"PYTHONPATH": search_path(), "KEOPS_CACHE_FOLDER": folder}
            done = subprocess.run(
                words, cwd=ROOT, capture_output=True, text=True, timeout=max(5.0, limit), env=env,
                check=False,
            )  # fmt: skip
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        failed = [line for line in lines if line.startswith(("FAIL", "ERROR"))]
        note = "; ".join([*lines[-1:], *failed])
        write_row(name, passed=done.returncode == 0, note=note[:4000])


def compared(task: tuple[str, str]) -> dict[str, Any]:
    """The row of an approximation."""
    name, device = task
    torch.set_num_threads(1)
    row: dict[str, Any] = {"name": f"five steps, {name}"}
    try:
        with with_tables(FIVE_STEPS[name]) as options:
            return row | five_steps(device, name, options)
    except Exception as error:  # of any kind: the others may still work
        return row | failure(error)


def five_steps(device: str, name: str, options: tuple[str, ...]) -> dict[str, Any]:
    """Train on the CPU and on the device in float64 with the same random numbers; count waits."""
    is_gpu = torch.device(device).type == "cuda"
    named = any(o.startswith("approx=") for o in options)
    own = any(o.startswith("data=") for o in options)
    common = [] if own else [*SMALL_DATA]
    common += ["init.max_evaluations=5", "trainer.baselines=false", *SILENT_RUN]
    common += [] if named else [f"approx={name}"]
    common += [*options, "trainer.max_steps=5", "trainer.dtype=float64"]
    with drawn_alike():
        here = run_metrics([*common, "trainer.device=cpu"])
    waits = 0
    if is_gpu:
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught, drawn_alike():
            warnings.simplefilter("always")
            there = run_metrics([*common, f"trainer.device={device}"])
    finally:
        if is_gpu:
            torch.cuda.set_sync_debug_mode("default")
    if is_gpu:
        waits = sum("synchron" in str(w.message) for w in caught)
    other = {
        str(w.message).splitlines()[0][:80] for w in caught if "synchron" not in str(w.message)
    }
    found, right = there["train.evidence"], here["train.evidence"]
    off = abs(found - right) / max(1.0, abs(right))
    return {
        "value": off, "unit": "off by, relative", "passed": off <= ESTIMATES.get(name, 1e-4),
        "note": f"{waits} waits; {'; '.join(sorted(other))[:200]}",
    }  # fmt: skip


def kernel_products(machine: Machine) -> None:
    """Products and gradients of every backend, compared with dense float64."""
    for backend in backends(machine):
        for label in DTYPES:
            name = f"product and gradient, {backend}, {label}"
            with catch_errors(name):
                task = (str(machine.device), machine.quick, backend, label)
                # a fault of code that KeOps compiled would end this process
                off = in_process(product_error, task) if backend == "keops" else product_error(task)
                allowed = 1e-10 if label == "float64" else 1e-4
                write_row(name, value=off, unit="off by, relative", passed=off <= allowed)


def product_error(task: tuple[str, bool, str, str]) -> float:
    """Relative error of a product and its gradient by a backend."""
    device, quick, backend, label = task
    machine, dtype = Machine(device, quick, 60.0), DTYPES[label]
    n = machine.size(3000, 200)
    x, right = machine.normal(n, 8, dtype=torch.float64), machine.normal(n, 16, seed=1).double()

    def found(kernel: RBF, product: Tensor) -> tuple[Tensor, Tensor]:
        (product * right.to(product)).sum().backward()
        slopes = [p.grad.reshape(-1) for p in kernel.parameters()]
        return product.detach().double(), torch.cat(slopes).double()

    exact = RBF(8, lengthscale=LENGTHSCALE).to(machine.device, torch.float64)
    known = found(exact, exact.evaluate(x, x) @ right)
    kernel = RBF(8, lengthscale=LENGTHSCALE).to(machine.device, dtype)
    matrix = KernelMatrix.of(kernel, x.to(dtype), backend=backend)  # type: ignore[arg-type]
    ours = found(kernel, matrix @ right.to(dtype))
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, known, strict=True))


def own_backends(machine: Machine) -> list[str]:
    """All but KeOps, which would compile for seconds for every kernel."""
    return [name for name in backends(machine) if name != "keops"]


def long_sums(machine: Machine) -> None:
    """Sums of 100,000 positive entries in float32, where errors of one sign would add up."""
    n = machine.size(100_000, 2000)
    x = machine.normal(n, 8, dtype=torch.float64)
    few, ones = x[:500], torch.ones(n, 1, dtype=torch.float64, device=machine.device)
    kernel = RBF(8, lengthscale=LENGTHSCALE).to(machine.device, torch.float64).requires_grad_(False)
    exact = kernel.evaluate(few, x) @ ones
    kernel = kernel.float()
    for backend in own_backends(machine):
        name = f"sums of {n:,} entries, {backend}, float32"
        with catch_errors(name):
            matrix = KernelMatrix.of(kernel, few.float(), x.float(), backend=backend)  # type: ignore[arg-type]
            off = float(((matrix @ ones.float()).double() / exact - 1.0).abs().max())
            write_row(name, value=off, unit="off by, relative", passed=off <= 1e-5)


def coincident_rows(machine: Machine) -> None:
    """Entries for coincident rows, one, of a kernel whose square root magnifies rounding."""
    x = machine.normal(machine.size(1000, 50), 8)
    kernel = Matern12(8, lengthscale=LENGTHSCALE).to(machine.device).requires_grad_(False)
    identity = torch.eye(len(x), device=machine.device)
    for backend in own_backends(machine):
        name = f"coincident rows, Matern 1/2, {backend}, float32"
        with catch_errors(name):
            matrix = KernelMatrix.of(kernel, x, x.clone(), backend=backend)  # type: ignore[arg-type]
            off = float(((matrix @ identity).diagonal() - 1.0).abs().max())
            write_row(name, value=off, unit="off by", passed=off <= 2e-3)
