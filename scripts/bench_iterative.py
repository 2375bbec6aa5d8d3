"""Evidence without a factorisation: gpx against GPyTorch at equal accuracy, and against the truth.

Three tables:

1. value and gradient of the log marginal likelihood at n = 5,000 points of 4 inputs: seconds, error
   in nats against Cholesky, relative error of the gradient (root mean squares over the repeats:
   mostly the scatter of ten probes, so few repeats say little about them).
   gpx in float64, and with float32 products under float64 recurrences; GPyTorch in both dtypes;
2. the barely biased estimate at n = 500 over 100 seeds: the bias measured beside the bound asked
   for, and the products with the kernel matrix beside those of GPyTorch's fixed settings;
3. value and gradient at n = 20,000: seconds and peak memory of the process.

    python scripts/bench_iterative.py --threads 2 [--repeats 3] [--skip-large] [--device cuda]
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import ExitStack

import gpytorch
import linear_operator
import torch
from device_clock import clock_of, peak_gib

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import ExactGP, IterativeOptions
from gpx.objectives import BarelyBiasedMLL, ExactMLL, IterativeMLL

INPUTS, LENGTHSCALE, NOISE = 4, 1.0, 0.01
DEVICE = "cpu"
"""Where everything runs; set by ``main``."""


def problem(n):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64)
    noise = NOISE**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) / INPUTS**0.5 + noise
    return x.to(DEVICE), y.to(DEVICE)


def model(rank, product_dtype=None, memory_budget="2GiB"):
    return ExactGP(
        kernel=Matern32(ard_num_dims=INPUTS, lengthscale=[LENGTHSCALE] * INPUTS, outputscale=1.0),
        mean=Constant(),
        likelihood=Gaussian(NOISE),
        solver="iterative",
        iterative=IterativeOptions(
            rank=rank, product_dtype=product_dtype, memory_budget=memory_budget
        ),
    ).to(DEVICE, torch.float64)


class Peer(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=INPUTS)
        )

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def peer(x, y):
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    found = Peer(x, y, likelihood).to(x)
    found.covar_module.base_kernel.lengthscale = LENGTHSCALE
    found.covar_module.outputscale = 1.0
    likelihood.noise = NOISE
    return found.train()


class Products:
    """Counts columns multiplied by the n x n matrix in GPyTorch's solves."""

    def __enter__(self):
        kind = linear_operator.operators.AddedDiagLinearOperator
        self.kind, self.usual, self.columns = kind, kind._matmul, 0

        def counted(operator, right):
            self.columns += 1 if right.ndim == 1 else right.shape[-1]
            return self.usual(operator, right)

        kind._matmul = counted
        return self

    def __exit__(self, *_):
        self.kind._matmul = self.usual


def words(settings):
    return ", ".join(f"{k} {v}" for k, v in settings.items()) or "default settings"


def peer_evidence(x, y, settings, seed, gradient=True):
    """Evidence in nats, its gradient (lengthscales, outputscale, noise in natural units)."""
    found = peer(x, y)
    names = {
        "probes": "num_trace_samples",
        "rank": "max_preconditioner_size",
        "tolerance": "cg_tolerance",
        "steps": "max_lanczos_quadrature_iterations",
    }
    torch.manual_seed(seed)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(gpytorch.settings.max_cholesky_size(0))
        stack.enter_context(gpytorch.settings.fast_computations())
        stack.enter_context(gpytorch.settings.min_preconditioning_size(1))
        stack.enter_context(gpytorch.settings.max_cg_iterations(1000))
        for name, value in settings.items():
            stack.enter_context(getattr(gpytorch.settings, names[name])(value))
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(found.likelihood, found)
        with torch.set_grad_enabled(gradient):
            value = mll(found(x), y) * len(y)
        if not gradient:
            return value.item(), None
        value.backward()
    kernel, noise = found.covar_module, found.likelihood.noise_covar
    pairs = (
        (kernel.base_kernel.raw_lengthscale, kernel.base_kernel.raw_lengthscale_constraint),
        (kernel.raw_outputscale, kernel.raw_outputscale_constraint),
        (noise.raw_noise, noise.raw_noise_constraint),
    )
    return value.item(), torch.cat([(p.grad / slope(p, c)).flatten() for p, c in pairs]).double()


def slope(raw, constraint):
    leaf = raw.detach().requires_grad_()
    return torch.autograd.grad(constraint.transform(leaf).sum(), leaf)[0]


def natural_gradient(evidence, holder):
    """Gradient with respect to lengthscales, outputscale and noise variance in natural units."""
    owners = (
        (holder.kernel, "lengthscale"),
        (holder.kernel, "outputscale"),
        (holder.likelihood, "noise_variance"),
    )
    found = []
    for owner, name in owners:
        part = owner.parametrizations[name]
        (grad,) = torch.autograd.grad(evidence.value, part.original, retain_graph=True)
        leaf = part.original.detach().requires_grad_()
        (rate,) = torch.autograd.grad(part[0](leaf).sum(), leaf)
        found.append((grad / rate).flatten())
    return torch.cat(found)


def our_evidence(objective, holder, x, y, seed):
    draws = torch.Generator(x.device).manual_seed(seed)
    evidence = objective.evidence(holder, x, y, generator=draws)
    return evidence.value.item(), natural_gradient(evidence, holder)


def root_mean_square(values):
    return math.sqrt(sum(v * v for v in values) / len(values))


def bench_equal_accuracy(n, repeats, clock):
    x, y = problem(n)
    truth_model = model(1)
    exact = ExactMLL().evidence(truth_model, x, y)
    truth, gradient = exact.value.item(), natural_gradient(exact, truth_model)

    runs = {}
    for dtype in ("float64", "float32"):
        for rank, tolerance in ((500, 0.1), (1000, 1.0)):
            objective, holder = IterativeMLL(tolerance=tolerance), model(rank, dtype)
            runs[f"gpx, rank {rank}, tolerance {tolerance} nats, {dtype}"] = functools.partial(
                our_evidence, objective, holder, x, y
            )
    for dtype in (torch.float64, torch.float32):
        for settings in ({}, {"rank": 100, "tolerance": 0.1, "steps": 50}):
            name = f"GPyTorch, {words(settings)}, {str(dtype).removeprefix('torch.')}"
            runs[name] = functools.partial(peer_evidence, x.to(dtype), y.to(dtype), settings)
    times, errors, off = ({name: [] for name in runs} for _ in range(3))
    for seed in range(repeats):  # in turn, so that a busy machine slows all alike
        for name, function in runs.items():
            start = clock()
            value, found = function(seed=seed)
            times[name].append(clock() - start)
            errors[name].append(value - truth)
            off[name].append(float((found - gradient).norm() / gradient.norm()))
    print(f"n = {n}, evidence {truth:.1f} nats; value and gradient")
    print(f"{'':60} {'seconds':>9} {'nats off':>9} {'gradient off':>13}")
    for name in runs:
        print(
            f"{name:60} {statistics.median(times[name]):9.2f} "
            f"{root_mean_square(errors[name]):9.2f} {100 * root_mean_square(off[name]):11.2f} %"
        )
    for ours in [name for name in runs if name.startswith("gpx")]:
        alike = "float64" if "float64" in ours else "float32"
        for theirs in [n for n in runs if n.startswith("GPyTorch") and alike in n]:
            ratio = statistics.median(
                b / a for a, b in zip(times[ours], times[theirs], strict=True)
            )
            closer = root_mean_square(errors[theirs]) / root_mean_square(errors[ours])
            line = f"{ours}: {ratio:.1f} times faster, {closer:.1f} times closer than {theirs}"
            if "default" not in theirs:  # whose error is a bias, which no number of probes cures
                line += f"; {ratio * closer**2:.1f} times faster at equal scatter by more probes"
            print(line)


def bench_barely_biased(n, seeds):
    x, y = problem(n)
    holder = model(50)
    with torch.no_grad():
        truth = ExactMLL().evidence(holder, x, y).value.item()
    print(f"\nn = {n}, evidence {truth:.2f} nats, {seeds} seeds; products counted by column")
    print(f"{'':58} {'bias':>8} {'+-':>7} {'rms':>8} {'products':>9}")

    def row(name, results):
        errors = [value - truth for value, _ in results]
        mean = statistics.mean(errors)
        spread = statistics.stdev(errors) / len(errors) ** 0.5
        products = statistics.mean(count for _, count in results)
        rms = root_mean_square(errors)
        print(f"{name:58} {mean:8.3f} {spread:7.3f} {rms:8.3f} {products:9.0f}")

    for bias in (10.0, 1.0, 0.1):
        for probes in (1, 10):
            objective = BarelyBiasedMLL(bias=bias, probes=probes)
            results = []
            for seed in range(seeds):
                with torch.no_grad():
                    found = objective.evidence(
                        holder, x, y, generator=torch.Generator(x.device).manual_seed(seed)
                    )
                results.append((found.value.item(), found.facts["columns_multiplied"]))
            row(f"gpx, bias at most {bias:g} nats, rank 50, {probes} probes", results)
    for settings in (
        {},
        {"rank": 50, "tolerance": 0.1, "steps": 20},
        {"rank": 50, "tolerance": 0.01, "steps": 50},
        {"rank": 50, "tolerance": 0.001, "steps": 100},
    ):
        results = []
        for seed in range(seeds):
            with Products() as products:
                value, _ = peer_evidence(x, y, settings, seed, gradient=False)
            results.append((value, products.columns))
        row(f"GPyTorch, {words(settings)}", results)


def large(n, dtype):
    """Runs in a process of its own, so that its peak memory is that of this evaluation."""
    x, y = problem(n)
    # half the budget may hold the matrix: in float32 it does, in float64 tiles are evaluated anew
    holder, objective = model("auto", dtype, 3.3), IterativeMLL()
    clock = clock_of(DEVICE, time.perf_counter)
    start = clock()
    draws = torch.Generator(x.device).manual_seed(0)
    evidence = objective.evidence(holder, x, y, generator=draws)
    gradient = natural_gradient(evidence, holder)
    seconds, peak = clock() - start, peak_gib(DEVICE)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "gib": peak,
                "steps": evidence.report.iterations,
                "rank": evidence.facts["preconditioner_rank"],
                "products": evidence.facts["products"],
                "error": evidence.parts["standard_error"].item(),
                "finite": bool(gradient.isfinite().all()),
                "value": evidence.value.item(),
            }
        )
    )


def bench_large(n, threads):
    print(f"\nn = {n}, value and gradient, 10 probes; peak memory of the process")
    for dtype in ("float64", "float32"):
        command = [sys.executable, __file__, "--threads", str(threads), "--large", str(n), dtype]
        command += ["--device", DEVICE]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"gpx, {found['products']:16} rank {found['rank']} {found['seconds']:7.1f} s, "
            f"{found['steps']} steps, "
            f"{found['gib']:.2f} GiB, evidence {found['value']:.1f} +- {found['error']:.1f} nats"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--skip-large", action="store_true")
    parser.add_argument("--large", nargs=2, metavar=("N", "DTYPE"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--cpu", action="store_true", help="CPU seconds in table 1, where others use the machine"
    )
    parser.add_argument("--table", type=int, choices=(1, 2, 3), help="one table only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    global DEVICE
    DEVICE = options.device
    if options.large:
        large(int(options.large[0]), options.large[1])
        return
    clock = clock_of(DEVICE, time.process_time if options.cpu else time.perf_counter)
    unit = "CPU seconds of all threads" if options.cpu else "seconds"
    print(f"{options.threads} threads, {options.repeats} runs in turn, medians; {unit}")
    if options.table in (None, 1):
        bench_equal_accuracy(5_000, options.repeats, clock)
    if options.table in (None, 2):
        bench_barely_biased(500, options.seeds)
    if options.table == 3 or (options.table is None and not options.skip_large):
        bench_large(20_000, options.threads)


if __name__ == "__main__":
    main()
