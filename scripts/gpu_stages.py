"""What the stages of ``gpu_hour.py`` measure; every finding is one JSON line on standard output.

    python scripts/gpu_stages.py ceilings --device cuda

A part of a stage that fails says so in its row and the next part goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from drawn_alike import drawn_alike
from gpu_peers import peer_exact, peer_product, peer_sgpr, peer_svgp
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor

from gpx.errors import GPXError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg.replayed import EAGER_STEPS
from gpx.means import Zero
from gpx.methods.exact.exact_mll import log_marginal_likelihood
from gpx.models import SGPR, SVGP
from gpx.objectives import SVGPELBO, CollapsedELBO
from gpx.operators import KernelMatrix
from gpx.runs import RunFolder, run
from gpx.runs.environment import environment_record, source_commit
from gpx.training.replayed_step import ReplayedStep

ROOT = Path(__file__).resolve().parents[1]
COMMIT = source_commit(ROOT)
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SILENT_RUN = ("trainer.tensorboard=false", "trainer.figures=false", "trainer.eval_every=0")
SMALL_DATA = ("data=robot_arm", "data.num_points=400", "init.num_points=100")


def say(name: str, **row: Any) -> None:
    """Write one finding; see ``gpu_hour.py`` for what its keys become."""
    print(json.dumps({"name": name, "commit": COMMIT, **row}), flush=True)


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """One part of a stage: where it fails, its row says why."""
    try:
        yield
    except Exception as error:  # whatever it is, the next part is worth running
        place = traceback.extract_tb(error.__traceback__)[-1]
        first = (str(error).splitlines() or [""])[0][:240]
        where = f"{Path(place.filename).name}:{place.lineno}"
        say(name, passed=False, note=f"{type(error).__name__}: {first} ({where})")
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Machine:
    """A device, and whether sizes are tiny."""

    def __init__(self, device: str, quick: bool, seconds: float) -> None:
        self.device, self.quick = torch.device(device), quick
        self.until = time.monotonic() + seconds
        self.is_gpu = self.device.type == "cuda"

    def size(self, full: int, tiny: int) -> int:
        """A number that is smaller with ``--quick``."""
        return tiny if self.quick else full

    def left(self) -> float:
        """Seconds until the stage is stopped."""
        return self.until - time.monotonic()

    def wait(self) -> None:
        """Until the device has done what it was told."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """Median time of ``work``, after one run that is not counted."""
        work()
        self.wait()
        times = []
        for _ in range(1 if self.quick else repeats):
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
        """Standard normals that are the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.device, dtype)


# -- ceilings -------------------------------------------------------------------------------------


def ceilings(machine: Machine) -> None:
    """What the device can do at all, and what it is."""
    record = environment_record(machine.device, 0, {})
    keys = ("versions", "device_name", "matmul", "gpu")
    say("machine", note=json.dumps({k: record[k] for k in keys}).replace('"', ""))
    with part("launch latency"):
        one = torch.zeros(1, device=machine.device)
        times = machine.seconds(lambda: [one.add_(1.0) for _ in range(1000)])
        say("launch latency", value=1e3 * times, unit="us a launch")
    count = machine.size(2**30, 2**20)
    with part("copy"):
        source = torch.empty(count, device=machine.device)
        target = torch.empty_like(source)
        found = machine.seconds(lambda: target.copy_(source))
        say("copy", value=8e-12 * count / found, unit="TB/s", better="higher")
    for name in ("exp", "cos"):
        with part(name):
            values = torch.zeros(count // 4, device=machine.device)
            found = machine.seconds(lambda v=values, n=name: getattr(torch, n)(v, out=v))
            say(f"{name}, float32", value=1e-12 * values.numel() / found, unit="1e12/s")
    n = machine.size(16384, 256)
    for dtype, precision in (("float64", "highest"), ("float32", "highest"), ("float32", "high")):
        label = f"product, {dtype}" + (", tf32" if precision == "high" else "")
        with part(label):
            torch.set_float32_matmul_precision(precision)
            a = machine.normal(n, n, dtype=DTYPES[dtype])
            found = machine.seconds(lambda a=a: a @ a)
            say(label, value=2e-12 * n**3 / found, unit="TFLOP/s", better="higher")
    torch.set_float32_matmul_precision("highest")
    for dtype in DTYPES:
        with part(f"Cholesky, {dtype}"):
            n = machine.size(20000, 200)
            a = torch.full((n, n), 0.5, dtype=DTYPES[dtype], device=machine.device)
            a.diagonal().add_(1.0)
            found = machine.seconds(lambda a=a: torch.linalg.cholesky_ex(a), 3)
            rate = 1e-12 * n**3 / 3 / found
            say(f"Cholesky, {dtype}", value=rate, unit="TFLOP/s", note=f"n = {n}")


# -- correctness ----------------------------------------------------------------------------------

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
}  # fmt: skip


ESTIMATES = {"exact, iterative": 0.05}
"""Allowed relative differences of runs that take another way on a GPU: pivots in blocks, and with
them another estimate of the log determinant. All others agree to rounding."""


def trained(options: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Metrics of a run."""
    GlobalHydra.instance().clear()
    with (
        initialize_config_dir(str(ROOT / "configs"), version_base="1.3"),
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        return run(compose("train", overrides=list(options)), RunFolder(Path(folder) / "run"))


def correctness(machine: Machine) -> None:
    """The doctor, the tests for GPUs, every approximation on both devices, kernel products."""
    command(machine, "doctor", [sys.executable, "-m", "gpx.doctor"], 120)
    kernel_products(machine)
    chosen = dict(list(FIVE_STEPS.items())[:: 6 if machine.quick else 1])
    for name, options in chosen.items():
        if machine.left() < 60:
            say("five steps: the rest", passed=None, note=f"no time left before {name}")
            break
        with part(f"five steps, {name}"):
            five_steps(machine, name, options)
    if machine.is_gpu:
        gpu_tests(machine)


def gpu_tests(machine: Machine) -> None:
    """The tests that need a GPU: their files alone, since to collect all takes minutes."""
    name = "tests marked gpu"
    if importlib.util.find_spec("pytest") is None:
        say(name, passed=None, note="pytest is not installed")
        return
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(path) for path in every if "mark.gpu" in path.read_text()]
    # the options of pyproject.toml name a plugin that may not be there
    words = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=--import-mode=importlib"]
    command(machine, name, [*words, "-m", "gpu", *files], machine.left() - 10)


def command(machine: Machine, name: str, words: list[str], limit: float) -> None:
    """A program that passes where it ends with status 0 in time."""
    with part(name):
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=max(5.0, limit),
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:]
        failed = [line.strip() for line in done.stdout.splitlines() if "FAIL" in line][:3]
        say(name, passed=done.returncode == 0, note="; ".join([*last, *failed])[:400])


def five_steps(machine: Machine, name: str, options: tuple[str, ...]) -> None:
    """One run on the CPU and one on the device in float64, draws alike, and the device's waits."""
    named = any(o.startswith("approx=") for o in options)
    common = [*SMALL_DATA, "init.max_evaluations=5", "trainer.baselines=false", *SILENT_RUN]
    common += [] if named else [f"approx={name}"]
    common += [*options, "trainer.max_steps=5", "trainer.dtype=float64"]
    with drawn_alike():
        here = trained([*common, "trainer.device=cpu"])
    waits = 0
    if machine.is_gpu:
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught, drawn_alike():
            warnings.simplefilter("always")
            there = trained([*common, f"trainer.device={machine.device}"])
    finally:
        if machine.is_gpu:
            torch.cuda.set_sync_debug_mode("default")
    if machine.is_gpu:
        waits = sum("synchron" in str(w.message) for w in caught)
    other = {
        str(w.message).splitlines()[0][:80] for w in caught if "synchron" not in str(w.message)
    }
    found, right = there["train.evidence"], here["train.evidence"]
    off = abs(found - right) / max(1.0, abs(right))
    say(
        f"five steps, {name}", value=off, unit="off by, relative",
        passed=off <= ESTIMATES.get(name, 1e-4),
        note=f"{waits} waits; {'; '.join(sorted(other))[:200]}",
    )  # fmt: skip


def backends(machine: Machine) -> list[str]:
    """Names of those that can be asked for here."""
    x, found = machine.normal(4, 2), []
    for name in ("dense", "chunked", "keops", "triton"):
        with contextlib.suppress(GPXError):
            KernelMatrix.of(RBF(2).to(machine.device), x, backend=name)  # type: ignore[arg-type]
            found.append(name)
    return found


def kernel_products(machine: Machine) -> None:
    """Products and gradients of every backend against dense float64."""
    n = machine.size(3000, 200)
    x, right = machine.normal(n, 8, dtype=torch.float64), machine.normal(n, 16, seed=1).double()
    exact = RBF(8, lengthscale=2.0).to(machine.device, torch.float64)
    dense = exact.evaluate(x, x) @ right
    (dense * right).sum().backward()
    slope = torch.cat([p.grad.reshape(-1) for p in exact.parameters()])
    for backend in backends(machine):
        for label, dtype in DTYPES.items():
            name = f"product and gradient, {backend}, {label}"
            with part(name):
                kernel = RBF(8, lengthscale=2.0).to(machine.device, dtype)
                matrix = KernelMatrix.of(kernel, x.to(dtype), backend=backend)  # type: ignore[arg-type]
                product = matrix @ right.to(dtype)
                (product * right.to(dtype)).sum().backward()
                found = torch.cat([p.grad.reshape(-1) for p in kernel.parameters()])
                off = float((product.double() - dense).norm() / dense.norm())
                turned = float((found.double() - slope).norm() / slope.norm())
                allowed = 1e-10 if dtype == torch.float64 else 1e-4
                say(
                    name, value=max(off, turned), unit="off by, relative",
                    passed=max(off, turned) <= allowed,
                )  # fmt: skip


# -- headline runs --------------------------------------------------------------------------------

HEADLINE = (
    (("approx=qsgp", "data=kin40k"), "one CPU core (README)", 203.0),
    (("approx=svgp", "data=kin40k", "kernel=matern32"), "one CPU core (README)", 215.0),
    (("approx=sgpr", "data=kin40k", "kernel=matern32"), "one CPU core (README)", 498.0),
    (("approx=vecchia", "data=kin40k"), "one CPU core (README)", 35.0),
    (("approx=qsgp_inducing", "data=kin40k"), "one CPU core (README)", 279.0),
    (("approx=exact", "data=kin40k", "trainer.max_steps=20"), None, None),
)


def headline(machine: Machine) -> None:
    """The README's commands as they stand, on the device."""
    for options, peer_name, peer in HEADLINE[: machine.size(len(HEADLINE), 2)]:
        name = "train.py " + " ".join(options)
        if machine.left() < 15:
            say(name, passed=None, note="no time left")
            continue
        with part(name):
            extra = [*SILENT_RUN, "trainer.baselines=false", f"trainer.device={machine.device}"]
            if machine.quick:
                extra += [*SMALL_DATA, "trainer.max_steps=2"]
                extra += ["approx.num_basis=400"] * (options[0] == "approx=qsgp")
                extra += ["approx.num_inducing=20"] * (options[0] == "approx=svgp")
            found = trained([*options, *extra])
            say(
                name, value=found["train.seconds"], unit="s",
                peer=None if machine.quick else peer, peer_name=peer_name or "",
                note=f"rmse {found['test.rmse']:.4f}, mnlp {found['test.mnlp']:.4f}, peak "
                f"{found['memory.peak_mib']:.0f} MiB",
            )  # fmt: skip

    two_million_points(machine)


def two_million_points(machine: Machine) -> None:
    """What the grid specification asks of a GPU: GRIEF at the size of the electric set (F20)."""
    sys.path.insert(0, str(ROOT / "experiments" / "grief"))
    from electric_size import FUNCTIONS, MOST_BYTES, MOST_SECONDS, POINTS, measured

    points, functions = machine.size(POINTS, 4_000), machine.size(FUNCTIONS, 50)
    name = f"GRIEF, evidence and gradient, n = {points:,}, p = {functions:,}"
    if machine.left() < 15:
        say(name, passed=None, note="no time left")
        return
    with part(name):
        row = measured(points, functions, machine.device)
        held = row["held in all, MiB"]
        say(
            name, value=row["seconds"], unit="s",
            passed=row["seconds"] < MOST_SECONDS and held * 2**20 < MOST_BYTES,
            note=f"wanted: {MOST_SECONDS:.0f} s; {held:,.0f} MiB held, of at most "
            f"{MOST_BYTES / 2**20:,.0f}; the table: experiments/grief/electric_size.py",
        )  # fmt: skip


# -- peers ----------------------------------------------------------------------------------------


def peers(machine: Machine) -> None:
    """Kernel products, and one loss and gradient of SVGP, SGPR and the exact GP."""
    sizes = (1000,) if machine.quick else (36_000, 100_000, 391_000)
    for n in sizes:
        for columns in (1, 16):
            products(machine, n, columns)
    for dtype in DTYPES.values():
        svgp_step(machine, dtype)
        sgpr_step(machine, dtype)
        for n in (300,) if machine.quick else (10_000, 36_000):
            exact_step(machine, dtype, n)


def products(machine: Machine, n: int, columns: int) -> None:
    """K times a block by every backend, beside GPyTorch (through KeOps, or in rows)."""
    x, right = machine.normal(n, 8), machine.normal(n, columns, seed=1)
    kernel = RBF(8, lengthscale=2.0).to(machine.device).requires_grad_(False)
    peer, peer_name = None, "GPyTorch, by rows"
    with part(f"GPyTorch's product, n = {n:,}"):
        peer = 1e3 * machine.seconds(peer_product(x, right), 3)
    for backend in backends(machine):
        if backend == "dense" and n > 60_000:
            continue
        name = f"product, n = {n:,}, {columns} columns, {backend}"
        if machine.left() < 20:
            say(name, passed=None, note="no time left")
            continue
        with part(name):
            matrix = KernelMatrix.of(kernel, x, backend=backend, memory_budget=2**34)  # type: ignore[arg-type]
            found = machine.seconds(lambda m=matrix: m @ right, 3)
            say(name, value=1e3 * found, unit="ms", peer=peer, peer_name=peer_name)


def loss_and_gradient(
    model: torch.nn.Module, objective: torch.nn.Module, x: Tensor, y: Tensor
) -> Callable[[], object]:
    """Work of one step without the optimiser's."""

    def step() -> None:
        model.zero_grad()
        objective(model, x, y).backward()

    return step


def parts() -> dict[str, Any]:
    """Kernel, mean and likelihood of all comparisons, of 8 inputs."""
    return {
        "kernel": RBF(8, lengthscale=2.0),
        "mean": Zero(),
        "likelihood": Gaussian(0.1),
        "num_inputs": 8,
    }


def svgp_step(machine: Machine, dtype: torch.dtype) -> None:
    """SVGP of 512 points, 1,024 rows: beside GPyTorch's large-batch strategy."""
    size, batch = machine.size(512, 16), machine.size(1024, 64)
    name = f"SVGP-{size}, {batch:,} rows, {dtype_name(dtype)}"
    with part(name):
        z = machine.normal(size, 8, dtype=dtype)
        x, y = machine.normal(batch, 8, dtype=dtype, seed=1), machine.normal(batch, dtype=dtype)
        model = SVGP(**parts(), num_inducing=size).to(machine.device, dtype)
        model.place(z)
        found = machine.seconds(loss_and_gradient(model, SVGPELBO(36_000), x, y), 20)
        peer = 1e3 * machine.seconds(peer_svgp(z, x, y), 20)
        say(name, value=1e3 * found, unit="ms", peer=peer, peer_name="GPyTorch, large batch")
        if machine.is_gpu:  # as training runs it
            replayed(machine, name, model, x, y, peer)


def replayed(machine: Machine, name: str, model: SVGP, x: Tensor, y: Tensor, peer: float) -> None:
    """The same step from a recording, and whether its loss is that of the step as it is."""
    objective = SVGPELBO(36_000)

    def loss_of(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found = objective.evidence(model, x, y)
        return found.value / -36_000, dict(found.parts)

    step = ReplayedStep(loss_of, list(model.parameters()))
    losses = [float(step(x, y)[0]) for _ in range(EAGER_STEPS + 1)]
    found = machine.seconds(lambda: step(x, y), 20)
    same = step.replays > 0 and abs(losses[-1] - losses[0]) <= 1e-5 * abs(losses[0])
    say(
        f"{name}, replayed", value=1e3 * found, unit="ms", passed=same, peer=peer,
        peer_name="GPyTorch, large batch", note=step.given_up or f"{step.replays} replays",
    )  # fmt: skip


def sgpr_step(machine: Machine, dtype: torch.dtype) -> None:
    """SGPR of 512 points on 36,000 rows."""
    n, m = machine.size(36_000, 300), machine.size(512, 16)
    name = f"SGPR-{m}, n = {n:,}, {dtype_name(dtype)}"
    with part(name):
        x, y = machine.normal(n, 8, dtype=dtype), machine.normal(n, dtype=dtype, seed=2)
        model = SGPR(**parts(), num_inducing=m).to(machine.device, dtype)
        model.initialise(x, y, generator=torch.Generator(machine.device).manual_seed(0))
        found = machine.seconds(loss_and_gradient(model, CollapsedELBO(), x, y))
        peer = machine.seconds(peer_sgpr(x[:m].clone(), x, y))
        say(name, value=1e3 * found, unit="ms", peer=1e3 * peer, peer_name="GPyTorch")


def exact_step(machine: Machine, dtype: torch.dtype, n: int) -> None:
    """Evidence and gradient of the exact GP by Cholesky."""
    name = f"exact GP, n = {n:,}, {dtype_name(dtype)}"
    if machine.left() < 20:
        say(name, passed=None, note="no time left")
        return
    with part(name):
        x, y = machine.normal(n, 8, dtype=dtype), machine.normal(n, dtype=dtype, seed=2)
        kernel, noise = RBF(8, lengthscale=2.0).to(machine.device, dtype), x.new_tensor(0.1)
        found = machine.seconds(
            lambda: log_marginal_likelihood(kernel, x, y, noise, gradient=True), 3
        )
        # autograd through a factor holds several arrays of n x n
        peer = machine.seconds(peer_exact(x, y), 3) if n <= 10_000 else None
        say(name, value=found, unit="s", peer=peer, peer_name="GPyTorch, Cholesky")


def dtype_name(dtype: torch.dtype) -> str:
    """float32 or float64."""
    return str(dtype).removeprefix("torch.")


# -- profiles -------------------------------------------------------------------------------------


def profiles(machine: Machine) -> None:
    """Launches, the kernels that take most time, and peak memory of short runs."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if machine.is_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
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
            say(f"profile, {name}", passed=None, note="no time left")
            continue
        with part(f"profile, {name}"):
            words = [*data, *options, "init.max_evaluations=3", "init.num_points=100", *SILENT_RUN]
            words += ["trainer.baselines=false", "trainer.max_steps=3"]
            words += [f"trainer.device={machine.device}"]
            if machine.is_gpu:
                torch.cuda.reset_peak_memory_stats(machine.device)
            with torch.profiler.profile(activities=activities) as seen:
                found = trained(words)
            say_profile(machine, name, seen, found)


def say_profile(machine: Machine, name: str, seen: Any, metrics: dict[str, Any]) -> None:
    """Rows of one profile."""
    events = seen.key_averages()
    launches = sum(e.count for e in events if "LaunchKernel" in e.key)
    busy = "self_device_time_total" if machine.is_gpu else "self_cpu_time_total"
    top = sorted(events, key=lambda e: -getattr(e, busy, 0))[:6]
    said = ", ".join(f"{e.key[:40]} {1e-3 * getattr(e, busy, 0):.0f} ms" for e in top)
    say(f"profile, {name}: launches of the run", value=launches, note=said)
    peak = metrics["memory.peak_mib"]
    say(f"profile, {name}: peak memory", value=peak, unit="MiB")


# -- recipes --------------------------------------------------------------------------------------

RECIPES = (
    ("experiment=qsgp_kin40k", "published RMSE, 10^5 stochastic steps", 0.174),
    ("experiment=exact_kin40k", "", None),
    ("experiment=exact_houseelectric", "", None),
)


def recipes(machine: Machine) -> None:
    """The published lengths, each with its share of the time that is left."""
    chosen = RECIPES[: machine.size(len(RECIPES), 1)]
    for number, (recipe, peer_name, peer) in enumerate(chosen):
        share = machine.left() / (len(chosen) - number) - 5
        words = [sys.executable, "train.py", recipe, f"trainer.device={machine.device}"]
        if machine.quick:
            words += [*SMALL_DATA, "trainer.max_steps=3", "approx.num_basis=400"]
            words += ["objective.columns=100", "objective.diagonal_columns=100"]
            words += ["objective.support_rows=20"]
        with part(recipe), tempfile.TemporaryDirectory() as folder:
            words += [*SILENT_RUN, "trainer.baselines=false", f"hydra.run.dir={folder}/run"]
            started = time.perf_counter()
            process = subprocess.Popen(
                words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            try:
                said, _ = process.communicate(timeout=max(5.0, share))
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                last = [line for line in said.splitlines() if line.startswith("step")][-1:]
                say(recipe, passed=None, note=f"stopped after {share:.0f} s: {' '.join(last)}")
                continue
            seconds = time.perf_counter() - started
            if process.returncode:
                say(recipe, passed=False, note=(said.strip().splitlines() or ["?"])[-1][:300])
                continue
            found = json.loads((Path(folder) / "run" / "metrics.json").read_text())
            say(
                recipe, value=found["test.rmse"], unit="rmse", peer=peer, peer_name=peer_name,
                note=f"{seconds:.0f} s, {found['train.steps']} steps",
            )  # fmt: skip


STAGES = {
    "ceilings": ceilings,
    "correctness": correctness,
    "headline": headline,
    "peers": peers,
    "profiles": profiles,
    "recipes": recipes,
}


def main() -> None:
    """One stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", message=".*UnconvergedWarning.*")
    STAGES[options.stage](Machine(options.device, options.quick, options.seconds))


if __name__ == "__main__":
    main()
