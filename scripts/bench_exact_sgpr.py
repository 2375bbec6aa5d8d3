"""Time and memory of one loss and gradient: exact GP against autograd, SGPR against GPyTorch.

    python scripts/bench_exact_sgpr.py --threads 2

Runs of gpx and its peer are interleaved in one process; the ratio is the median of the ratios of
neighbouring runs, so that a machine that is busy with other work slows both. The limit is the
time the leading matrix operations alone would take at rates measured in the same process. Peak
memory is what one evaluation adds to a process that has imported everything and run a tiny
problem; each figure comes from a process of its own. Inputs are random with kin40k's shape.
GPyTorch comes with the ``bench`` extra.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, ExactGP
from gpx.objectives import CollapsedELBO, ExactMLL

Step = Callable[[], Tensor]
DTYPES = {"float64": torch.float64, "float32": torch.float32}
PEERS = {"exact": "autograd", "sgpr": "gpytorch"}
NUM_INPUTS = 8
TINY = {"exact": 100, "sgpr": 200}


class Sizes(NamedTuple):
    """Problem sizes: data of the exact GP, data and inducing points of SGPR; and the device."""

    exact: int
    sgpr: int
    inducing: int
    device: str = "cpu"


class Rates(NamedTuple):
    """Measured rates in floating point operations per second."""

    product: float
    cholesky: float


class Timing(NamedTuple):
    """Median seconds of gpx and of the peer, and the median ratio of neighbouring runs."""

    gpx: float
    peer: float
    ratio: float


def data(n: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Random inputs (n, 8) and a smooth target with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, NUM_INPUTS, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x.to(device, dtype), (x.sum(1).sin() + 0.1 * noise).to(device, dtype)


def gpx_exact(sizes: Sizes, dtype: torch.dtype) -> Step:
    """Loss and gradient of the exact GP in gpx."""
    x, y = data(sizes.exact, dtype, sizes.device)
    model = ExactGP(kernel=_kernel(), mean=Constant(), likelihood=Gaussian(0.1)).to(x)
    objective = ExactMLL()
    return _step(lambda: objective(model, x, y), model)


def autograd_exact(sizes: Sizes, dtype: torch.dtype) -> Step:
    """The same loss through autograd: kernel, Cholesky, log-determinant and solve."""
    x, y = data(sizes.exact, dtype, sizes.device)
    model = ExactGP(kernel=_kernel(), mean=Constant(), likelihood=Gaussian(0.1)).to(x)
    n = x.shape[0]

    def loss() -> Tensor:
        identity = torch.eye(n, dtype=dtype, device=x.device)
        matrix = model.kernel.evaluate(x, x) + model.likelihood.noise_variance * identity
        factor = torch.linalg.cholesky(matrix)
        residual = (y - model.mean(x)).unsqueeze(1)
        fit = residual.mT @ torch.cholesky_solve(residual, factor)
        logdet = 2.0 * factor.diagonal().log().sum()
        return 0.5 * (fit.squeeze() + logdet + n * math.log(2.0 * math.pi)) / n

    return _step(loss, model)


def gpx_sgpr(sizes: Sizes, dtype: torch.dtype) -> Step:
    """Loss and gradient of the collapsed bound in gpx."""
    x, y = data(sizes.sgpr, dtype, sizes.device)
    model = SGPR(
        kernel=_kernel(),
        mean=Constant(),
        likelihood=Gaussian(0.1),
        num_inputs=NUM_INPUTS,
        num_inducing=sizes.inducing,
    ).to(x)
    model.place(x[: sizes.inducing])
    objective = CollapsedELBO()
    return _step(lambda: objective(model, x, y), model)


def gpytorch_sgpr(sizes: Sizes, dtype: torch.dtype) -> Step:
    """The same in GPyTorch: InducingPointKernel and ExactMarginalLogLikelihood."""
    import gpytorch

    x, y = data(sizes.sgpr, dtype, sizes.device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=NUM_INPUTS)
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                gpytorch.kernels.ScaleKernel(base),
                inducing_points=x[: sizes.inducing].clone(),
                likelihood=likelihood,
            )
            base.lengthscale = 2.0
            likelihood.noise = 0.1

        def forward(self, inputs: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(inputs), self.covar_module(inputs)
            )

    model = Model().to(x)
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return _step(lambda: -objective(model(x), y), model)


STEPS: dict[str, Callable[[Sizes, torch.dtype], Step]] = {
    "gpx exact": gpx_exact,
    "autograd exact": autograd_exact,
    "gpx sgpr": gpx_sgpr,
    "gpytorch sgpr": gpytorch_sgpr,
}


def measured_rates(dtype: torch.dtype, device: str, size: int = 3000, repeats: int = 3) -> Rates:
    """Best rate of a matrix product and of a Cholesky factorisation of ``size``."""
    left = torch.randn(size, size, dtype=dtype, device=device)
    product = min(_seconds(lambda: left @ left) for _ in range(repeats))
    positive = left @ left.mT + size * torch.eye(size, dtype=dtype, device=device)
    factor = min(_seconds(lambda: torch.linalg.cholesky_ex(positive)[0]) for _ in range(repeats))
    return Rates(2.0 * size**3 / product, size**3 / 3.0 / factor)


def limit_seconds(case: str, sizes: Sizes, rates: Rates) -> float:
    """Time of the leading operations alone.

    Exact: Cholesky (n^3 / 3 operations) and the inverse from it (2 n^3 / 3). SGPR: triangular
    solve (n M^2), symmetric product (n M^2) and one product in the second pass (2 n M^2).
    """
    if case == "exact":
        cube = float(sizes.exact) ** 3
        return cube / 3.0 / rates.cholesky + 2.0 * cube / 3.0 / rates.product
    return 4.0 * sizes.sgpr * float(sizes.inducing) ** 2 / rates.product


def compare(case: str, sizes: Sizes, dtype: torch.dtype, repeats: int) -> Timing:
    """Interleaved timings of gpx and its peer, after one warm-up each."""
    ours = STEPS[f"gpx {case}"](sizes, dtype)
    theirs = STEPS[f"{PEERS[case]} {case}"](sizes, dtype)
    ours(), theirs()
    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(repeats)]
    return Timing(
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def peak_mib(name: str, sizes: Sizes, dtype: str, threads: int) -> float:
    """Memory that one evaluation adds, in MiB, measured in a process of its own."""
    script = str(Path(__file__).resolve())
    options = ["--memory-of", name, "--dtype", dtype, "--threads", str(threads)]
    counts = ["--exact", str(sizes.exact), "--sgpr", str(sizes.sgpr)]
    counts += ["--inducing", str(sizes.inducing), "--device", sizes.device]
    command = [sys.executable, "-W", "ignore", script, *options, *counts]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["peak_mib"])


def added_memory(name: str, sizes: Sizes, dtype: torch.dtype) -> float:
    """Growth of peak memory over one evaluation, in MiB: resident memory, or that of a GPU."""
    tiny = Sizes(TINY["exact"], TINY["sgpr"], min(20, sizes.inducing), sizes.device)
    STEPS[name](tiny, dtype)()
    step = STEPS[name](sizes, dtype)
    if sizes.device != "cpu":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    before = _status_mib("VmRSS")
    step()
    return _status_mib("VmHWM") - before


def main() -> None:
    """Print one row per case and precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--exact", type=int, default=5000, help="data of the exact GP")
    parser.add_argument("--sgpr", type=int, default=36_000, help="data of SGPR")
    parser.add_argument("--inducing", type=int, default=512, help="inducing points of SGPR")
    parser.add_argument("--cases", nargs="+", choices=tuple(PEERS), default=tuple(PEERS))
    parser.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), default=tuple(DTYPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory-of", choices=tuple(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = Sizes(options.exact, options.sgpr, options.inducing, options.device)
    if options.memory_of:
        dtype = DTYPES[options.dtype[0]]
        print(json.dumps({"peak_mib": added_memory(options.memory_of, sizes, dtype)}))
        return
    print(f"{options.threads} threads, {sizes}, medians of {options.repeats} interleaved runs")
    header = f"{'case':6} {'dtype':8} {'gpx s':>7} {'peer s':>7} {'ratio':>6} {'limit s':>8} "
    header += f"{'of limit':>8} {'gpx MiB':>8} {'peer MiB':>9} {'ratio':>6}  peer; rates GFLOP/s"
    print(header, flush=True)
    for name in options.dtype:
        rates = measured_rates(DTYPES[name], sizes.device)
        for case in options.cases:
            timing = compare(case, sizes, DTYPES[name], options.repeats)
            limit = limit_seconds(case, sizes, rates)
            ours = peak_mib(f"gpx {case}", sizes, name, options.threads)
            theirs = peak_mib(f"{PEERS[case]} {case}", sizes, name, options.threads)
            row = f"{case:6} {name:8} {timing.gpx:7.3f} {timing.peer:7.3f} {timing.ratio:6.2f} "
            row += f"{limit:8.3f} {limit / timing.gpx:8.0%} {ours:8.0f} {theirs:9.0f} "
            row += f"{theirs / ours:6.1f}  {PEERS[case]}; product {rates.product / 1e9:.0f}, "
            print(row + f"Cholesky {rates.cholesky / 1e9:.0f}", flush=True)


def _kernel() -> Matern32:
    return Matern32(ard_num_dims=NUM_INPUTS, lengthscale=2.0)


def _step(loss: Callable[[], Tensor], model: torch.nn.Module) -> Step:
    def step() -> Tensor:
        model.zero_grad()
        value = loss()
        value.backward()
        return value.detach()

    return step


def _seconds(work: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    work().flatten()[0].item()  # a GPU answers when the work is done
    return time.perf_counter() - start


def _status_mib(name: str) -> float:
    """A line of this process's memory status (getrusage would report the parent's peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main()
