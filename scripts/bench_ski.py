"""Structured kernel interpolation against GPyTorch's KISS-GP and against its own bare products.

    python scripts/bench_ski.py                     # n = 100,000, 10,000 grid points
    python scripts/bench_ski.py --rows 10000000     # gpx alone: GPyTorch needs too long
    python scripts/bench_ski.py --inputs 2 --grid 300
    python scripts/bench_ski.py --device cuda

One evidence with its gradient. Same data, kernel and hyperparameters; processor time of one thread
(seconds on a CUDA device), interleaved, medians. KISS-GP runs with the package's own settings; its
evidence is stochastic, and the scatter over repeats is given beside that of gpx. Float32 is gpx
alone: there KISS-GP takes some 50 s and is 300 nats off.

"over bare": seconds over those of the products that this step took, alone, with the same vectors:
interpolation (W and its transpose), the grid's matrix (FFTs, or a Kronecker product) and its
derivative, the preconditioner's transforms to its waves or eigenvectors, and the targets' sums on
the grid. What is above 1 is bookkeeping, factorisations of the preconditioner, the kernel and
autograd.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpx.kernels import RBF, Kernel, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.ski.covariance import AxisCovariance, LagCovariance
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.low_rank import EigenPart
from gpx.methods.ski.waves import WavePart
from gpx.models import SKI
from gpx.objectives import SKIEvidence
from gpx.operators import BlockToeplitz, Interpolation, Kronecker, Toeplitz

NOISE = 0.01
BARE = (
    (Interpolation, "_by_batch"),
    (Toeplitz, "_multiply"),
    (BlockToeplitz, "_multiply"),
    (Kronecker, "_product"),
    (LagCovariance, "multiply"),
    (AxisCovariance, "multiply"),
    (LagCovariance, "gradient"),
    (AxisCovariance, "gradient"),
    (WavePart, "project"),
    (WavePart, "expand"),
    (EigenPart, "project"),
    (EigenPart, "expand"),
    (Gathered, "residuals"),
)
"""Products that no step can do without."""


@contextmanager
def recorded() -> Iterator[list[Callable[[], object]]]:
    """The calls of bare products made inside, to be made again; none within another."""
    calls: list[Callable[[], object]] = []
    inside = [False]
    kept = [(owner, name, getattr(owner, name)) for owner, name in BARE]

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if inside[0]:
                return method(*arguments, **options)
            calls.append(lambda: method(*arguments, **options))
            inside[0] = True
            try:
                return method(*arguments, **options)
            finally:
                inside[0] = False

        return call

    for owner, name, method in kept:
        setattr(owner, name, noted(method))
    try:
        yield calls
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def clock(device: str) -> float:
    """Processor seconds; seconds on an accelerator, when it is done."""
    if device == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


def problem(num: int, inputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 20.0 * torch.rand(num, inputs, generator=generator, dtype=torch.float64) - 10.0
    envelope = torch.exp(-x.square().sum(1) / (50.0 * inputs))
    noise = 0.1 * torch.randn(num, generator=generator, dtype=torch.float64)
    return x, (2.0 * x).sin().sum(1) * envelope + noise


def ours(x: Tensor, y: Tensor, size: int, kernel: Kernel) -> Callable[[], float]:
    model = SKI(
        kernel=kernel,
        mean=Constant(),
        likelihood=Gaussian(NOISE),
        num_inputs=x.shape[1],
        grid_size=size,
    ).to(x.device, x.dtype)
    began = time.process_time()
    model.initialise(x, y, generator=torch.Generator(x.device).manual_seed(1))
    print(f"  gathered once in {time.process_time() - began:.2f} s: {model.note}")
    objective = SKIEvidence(resample=True)
    draws = torch.Generator(x.device).manual_seed(2)

    def step() -> float:
        found = objective.evidence(model, x, y, generator=draws)
        found.value.backward()
        return found.value.item()

    return step


def theirs(x: Tensor, y: Tensor, size: int) -> Callable[[], float]:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.GridInterpolationKernel(
                gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
                grid_size=size,
                num_dims=x.shape[1],
            )

        def forward(self, inputs):
            mean, covariance = self.mean_module(inputs), self.covar_module(inputs)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
    model = Model(likelihood).to(x)
    model.covar_module.base_kernel.base_kernel.lengthscale = 1.0
    model.covar_module.base_kernel.outputscale = 1.0
    likelihood.noise = NOISE
    model.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step() -> float:
        value = evidence(model(x), y) * len(y)
        (-value).backward()
        return value.item()

    return step


def bare(step: Callable[[], float], device: str) -> float:
    """Seconds of the bare products of one step, made again after it."""
    with recorded() as calls:
        step()
    with torch.no_grad():
        began = clock(device)
        for call in calls:
            call()
        return clock(device) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--inputs", type=int, default=1)
    parser.add_argument("--grid", type=int, default=10_000, help="points of each axis")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rough", action="store_true", help="Matern 3/2 with more inputs, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    d, size = arguments.inputs, arguments.grid
    x, y = (t.to(arguments.device) for t in problem(arguments.rows, d))
    print(
        f"n = {len(x):,}, d = {d}, grid {size:,} points an axis, {arguments.device}, "
        f"{arguments.threads} thread(s), torch {torch.__version__}"
    )
    steps = {
        "gpx RBF float64": ours(x, y, size, RBF(d, 1.0, 1.0)),
        "gpx RBF float32": ours(x.float(), y.float(), size, RBF(d, 1.0, 1.0)),
    }
    if d == 1 or arguments.rough:
        steps["gpx Matern 3/2 float64"] = ours(x, y, size, Matern32(d, 1.0, 1.0))
    if d == 1 and len(x) <= 200_000:
        steps["GPyTorch RBF float64"] = theirs(x, y, size)
    times: dict[str, list[float]] = {name: [] for name in steps}
    values: dict[str, list[float]] = {name: [] for name in steps}
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(arguments.repeats + 1):
        for name, step in steps.items():
            began = clock(arguments.device)
            value = step()
            if repeat:  # the first one warms up
                times[name].append(clock(arguments.device) - began)
                values[name].append(value)
                if name.startswith("gpx"):
                    ratios[name].append(times[name][-1] / bare(step, arguments.device))
    print(f"{'':24} {'seconds':>9} {'over bare':>10} {'evidence':>14} {'scatter, nats':>14}")
    for name in steps:
        scatter = statistics.stdev(values[name]) if arguments.repeats > 1 else float("nan")
        mean = statistics.fmean(values[name])
        ratio = f"{statistics.median(ratios[name]):10.2f}" if ratios[name] else f"{'':10}"
        seconds = statistics.median(times[name])
        print(f"{name:24} {seconds:9.3f} {ratio} {mean:14.2f} {scatter:14.4f}")
    if "GPyTorch RBF float64" in steps:
        peer = statistics.median(times["GPyTorch RBF float64"])
        for name in ("gpx RBF float64", "gpx RBF float32"):
            print(f"{name}: {peer / statistics.median(times[name]):.1f} times faster than GPyTorch")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory of the process, all of the above: {peak:,} MiB")


if __name__ == "__main__":
    main()
