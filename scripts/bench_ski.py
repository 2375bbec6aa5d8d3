"""Structured kernel interpolation against GPyTorch's KISS-GP: evidence and gradient in one input.

    python scripts/bench_ski.py                     # n = 100,000, 10,000 grid points
    python scripts/bench_ski.py --rows 10000000     # gpx alone: GPyTorch needs too long

Same data, kernel and hyperparameters; processor time of one thread, interleaved, medians. KISS-GP
runs with the package's own settings; its evidence is stochastic, and the scatter over repeats is
given beside that of gpx. Float32 is gpx alone: there KISS-GP takes some 50 s and is 300 nats off.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.kernels import RBF, Kernel, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SKI
from gpx.objectives import SKIEvidence

NOISE = 0.01


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
    ).to(x.dtype)
    began = time.process_time()
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    print(f"  gathered once in {time.process_time() - began:.2f} s: {model.note}")
    objective = SKIEvidence(resample=True)
    draws = torch.Generator().manual_seed(2)

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

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(likelihood).double()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--inputs", type=int, default=1)
    parser.add_argument("--grid", type=int, default=10_000, help="points of each axis")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    d, size = arguments.inputs, arguments.grid
    x, y = problem(arguments.rows, d)
    print(f"n = {len(x):,}, d = {d}, grid {size:,} points an axis, {arguments.threads} thread(s)")
    steps = {
        "gpx RBF float64": ours(x, y, size, RBF(d, 1.0, 1.0)),
        "gpx RBF float32": ours(x.float(), y.float(), size, RBF(d, 1.0, 1.0)),
    }
    if d == 1:
        steps["gpx Matern 3/2 float64"] = ours(x, y, size, Matern32(d, 1.0, 1.0))
    if d == 1 and len(x) <= 200_000:
        steps["GPyTorch RBF float64"] = theirs(x, y, size)
    times: dict[str, list[float]] = {name: [] for name in steps}
    values: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(arguments.repeats + 1):
        for name, step in steps.items():
            began = time.process_time()
            value = step()
            if repeat:  # the first one warms up
                times[name].append(time.process_time() - began)
                values[name].append(value)
    print(f"{'':24} {'seconds':>9} {'evidence':>14} {'scatter, nats':>14}")
    for name in steps:
        scatter = statistics.stdev(values[name]) if arguments.repeats > 1 else float("nan")
        mean = statistics.fmean(values[name])
        print(f"{name:24} {statistics.median(times[name]):9.3f} {mean:14.2f} {scatter:14.4f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory of the process, all of the above: {peak:,} MiB")


if __name__ == "__main__":
    main()
