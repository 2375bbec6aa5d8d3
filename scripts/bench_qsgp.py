"""Step time and working memory of QSGP against the number of basis functions and of data rows.

    python scripts/bench_qsgp.py --threads 1
    python scripts/bench_qsgp.py --device cuda
    python scripts/bench_qsgp.py --likelihood bernoulli --inputs 784 --rows 100 --columns 2000

Each row is one model: sparse AdaGrad steps of the quadruply stochastic bound in float32, without
a warm start, or of the site bound with its snapshot (one pass over rows x functions before the
first step, so give it few rows). Configurations take turns within every round, so that a busy
machine slows all of them alike; the table gives medians and minima over rounds. The limit of a step
is the time that its cosines, sines and multiply-adds take at the rates of torch's own functions on
data in the cache, which are measured in every round as well. Operations are counted while a step
runs in torch operations; the compiled pass over features does the same work with cheaper cosines
and may beat that limit. ``CC=false`` times torch operations (without a compiler). Memory of a step
is what it holds beyond the state (weights and AdaGrad accumulators, O(m)) and the data.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.bases.fourier import native as fourier_native
from gpx.bases.fourier.native import fourier_pass
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Zero
from gpx.models import QSGP
from gpx.objectives import QuadruplyStochasticELBO, SiteBoundELBO
from gpx.training.allocator import keep_freed_memory

BATCH = 500


@dataclass
class Case:
    """One configuration with its model, optimiser and timings."""

    num_basis: int
    num_data: int
    device: torch.device
    columns: int
    num_dense: int
    num_inputs: int = 8
    likelihood: str = "gaussian"
    learn: bool = False

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(0)
        shape = self.num_data, self.num_inputs
        self.x = torch.randn(shape, generator=generator, device=self.device)
        self.y = torch.sin(self.x.sum(1))
        sites = self.likelihood == "bernoulli"
        if sites:
            self.y = self.y.sign()
        kernel = RBF(ard_num_dims=self.num_inputs, lengthscale=0.7 * self.num_inputs**0.5)
        self.model = QSGP(
            kernel=kernel,
            mean=Zero(),
            likelihood=Bernoulli() if sites else Gaussian(0.01),
            num_basis=self.num_basis,
            covariance="chevron" if self.num_dense else "mean_field",
            num_dense=self.num_dense,
            diagonal="free",
            warm_start=False,
        ).to(self.device)
        self.objective: QuadruplyStochasticELBO | SiteBoundELBO
        if sites:
            self.objective = SiteBoundELBO(self.num_data, self.columns).to(self.device)
        else:
            self.objective = QuadruplyStochasticELBO(
                self.num_data, columns=self.columns, drift_interval=0
            )
        self.objective.prepare(self.model, self.x, self.y, generator=generator)
        groups = self.model.parameter_groups()
        for parameter in groups["hyperparameters"]:  # frozen, as at the start of a run
            parameter.requires_grad_(self.learn)
        self.optimiser = torch.optim.Adagrad(groups["variational"], lr=1e-3)
        self.generator = generator
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def step(self) -> None:
        """One training step."""
        rows = torch.randint(self.num_data, (BATCH,), generator=self.generator, device=self.device)
        self.optimiser.zero_grad(set_to_none=True)
        self.objective.before_step(self.model, self.x, self.y, rows)
        loss = self.objective(self.model, self.x[rows], self.y[rows], generator=self.generator)
        loss.backward()
        with torch.sparse.check_sparse_tensor_invariants(False):
            self.optimiser.step()
        self.objective.after_step(self.model)

    def measure(self, steps: int) -> None:
        """Time ``steps`` steps; one entry each."""
        synchronise(self.device)
        for _ in range(steps):
            wall, cpu = time.perf_counter(), time.process_time()
            self.step()
            synchronise(self.device)
            self.wall.append(1e3 * (time.perf_counter() - wall))
            self.cpu.append(1e3 * (time.process_time() - cpu))


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Operations(TorchDispatchMode):
    """Counts trigonometric functions and multiply-adds of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.trigonometric = 0
        self.multiply_adds = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run ``func`` and count it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("cos", "cos_", "sin", "sin_"):
            self.trigonometric += result.numel()
        elif name in ("mm", "bmm", "addmm", "addmm_", "mv"):
            left = args[1] if name.startswith("addmm") else args[0]
            self.multiply_adds += result.numel() * left.shape[-1]
        return result


class Rates:
    """The machine's trigonometric functions and multiply-adds per millisecond, by rounds.

    Pairs of rates: by the wall clock, and by the processor time of all threads, in which other
    processes on the machine do not count.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.angles = torch.randn(2500, 500, device=device)
        self.values = torch.empty_like(self.angles)
        self.square = torch.randn(1536, 1536, device=device)
        self.trigonometric: list[tuple[float, float]] = []
        self.multiply_adds: list[tuple[float, float]] = []

    def _rates(self, operations: float, work: Callable[[], object]) -> tuple[float, float]:
        synchronise(self.device)
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        synchronise(self.device)
        spent = time.perf_counter() - wall, time.process_time() - cpu
        return operations / (1e3 * spent[0]), operations / (1e3 * spent[1])

    def measure(self) -> None:
        """One round."""

        def evaluate() -> None:
            torch.cos(self.angles, out=self.values)
            torch.sin(self.angles, out=self.values)

        self.trigonometric.append(self._rates(2 * self.angles.numel(), evaluate))
        self.multiply_adds.append(self._rates(1536**3, lambda: self.square @ self.square))

    def median(self, clock: int) -> tuple[float, float]:
        """Trigonometric functions and multiply-adds per ms of wall (0) or processor (1) time."""
        trigonometric = statistics.median(pair[clock] for pair in self.trigonometric)
        return trigonometric, statistics.median(pair[clock] for pair in self.multiply_adds)

    def limit(self, counted: Operations, clock: int = 0) -> float:
        """Milliseconds that the counted operations take at the median rates."""
        trigonometric, multiply_adds = self.median(clock)
        return counted.trigonometric / trigonometric + counted.multiply_adds / multiply_adds


def working_memory(case: Case) -> float:
    """MiB that one step holds beyond what was there before it."""
    gc.collect()
    if case.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(case.device)
        before = torch.cuda.memory_allocated(case.device)
        case.step()
        synchronise(case.device)
        return (torch.cuda.max_memory_allocated(case.device) - before) / 2**20
    with torch.profiler.profile(profile_memory=True) as profile:
        case.step()
    current = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--basis", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**6])
    parser.add_argument("--inputs", type=int, default=8, help="input dimension d")
    parser.add_argument("--likelihood", choices=("gaussian", "bernoulli"), default="gaussian")
    parser.add_argument("--columns", type=int, default=5000, help="basis functions per list")
    parser.add_argument("--learn", action="store_true", help="gradients of hyperparameters as well")
    parser.add_argument("--dense", type=int, default=0, help="dense columns of the covariance")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2, help="steps per round and case")
    parser.add_argument("--json", type=Path, default=None, help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    device = torch.device(options.device)
    first_rows, *more_rows = options.rows
    wanted = [(m, first_rows) for m in options.basis]
    wanted += [(options.basis[min(1, len(options.basis) - 1)], n) for n in more_rows]
    cases = [
        Case(
            *(m, n, device, options.columns, options.dense, options.inputs, options.likelihood),
            learn=options.learn,
        )
        for m, n in wanted
    ]
    for case in cases:
        case.step()
    memory = [working_memory(case) for case in cases]
    without_compiler = mock.patch.object(fourier_native, "_checked", return_value=None)
    with without_compiler, Operations() as counted:
        cases[0].step()
    rates = Rates(device)
    rates.measure()
    rates = Rates(device)
    for _ in range(options.rounds):
        for case in cases:
            rates.measure()
            case.measure(options.steps)
    limit, limit_cpu = rates.limit(counted), rates.limit(counted, clock=1)
    rows = [
        {
            "num_basis": case.num_basis,
            "num_data": case.num_data,
            "wall_ms": statistics.median(case.wall),
            "best_ms": min(case.wall),
            "cpu_ms": statistics.median(case.cpu),
            "limit_ms": limit,
            "limit_cpu_ms": limit_cpu,
            "step_mib": mib,
        }
        for case, mib in zip(cases, memory, strict=True)
    ]
    compiled = fourier_pass(torch.zeros(1, device=device)) is not None
    print(
        f"device {device}, {options.threads} threads, torch {torch.__version__}, float32, "
        f"features {'compiled' if compiled else 'by torch operations'}"
    )
    print(
        f"batch {BATCH}, support rows 500, {options.columns} columns per list, "
        f"{options.dense} dense columns, d = {options.inputs}, {options.likelihood} likelihood, "
        f"hyperparameters {'learned' if options.learn else 'frozen'}"
    )
    for name, value, clock in (("wall", limit, 0), ("processor", limit_cpu, 1)):
        trigonometric, multiply_adds = rates.median(clock)
        print(
            f"limit {value:.1f} ms of {name} time: {counted.trigonometric:.3g} cosines and sines "
            f"at {trigonometric / 1e3:.0f} million/s, {counted.multiply_adds:.3g} multiply-adds "
            f"at {multiply_adds / 1e6:.0f} thousand million/s"
        )
    print(
        f"{'m':>10} {'n':>9} {'wall ms':>9} {'best ms':>9} {'cpu ms':>9} {'step MiB':>9} "
        f"{'of limit':>9} {'cpu of limit':>13}"
    )
    for row in rows:
        print(
            f"{row['num_basis']:>10} {row['num_data']:>9} {row['wall_ms']:>9.1f} "
            f"{row['best_ms']:>9.1f} {row['cpu_ms']:>9.1f} {row['step_mib']:>9.1f} "
            f"{row['wall_ms'] / limit:>8.2f}x {row['cpu_ms'] / limit_cpu:>12.2f}x"
        )
    same_n = [row for row in rows if row["num_data"] == first_rows]
    same_m = [row for row in rows if row["num_basis"] == wanted[-1][0]]
    for name, group in (("m", same_n), ("n", same_m)):
        for key in ("wall_ms", "best_ms", "cpu_ms", "step_mib"):
            values = [row[key] for row in group]
            print(f"largest / smallest over {name}: {key} {max(values) / min(values):.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process, all cases together: {peak:.0f} MiB")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
