"""Evidence without a factorisation: gpx against GPyTorch at equal accuracy, and exact values.

Three tables:

1. value and gradient of the log marginal likelihood for 5,000 points with 4 inputs: seconds, error
   in nats against Cholesky, and relative error of the gradient. Errors are root mean squares over
   the repeats; they are mostly due to the ten random probes, so many repeats are needed. gpx runs
   in float64, and with float32 products in float64 recurrences; GPyTorch in both dtypes;
2. the barely biased estimate at n = 500 over 100 seeds: measured bias against the requested bound,
   and products with the kernel matrix against those of GPyTorch's fixed settings;
3. value and gradient at n = 20,000: seconds and peak memory of the process.

    python scripts/bench_iterative.py --threads 2 [--repeats 3] [--skip-large] [--device cuda]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import warnings

import torch
from peers import Products, Regression, by_iterations, matern
from tables import show
from timing import fair, in_own_process, in_turns, named, spent

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import ExactGP, IterativeOptions
from gpx.objectives import BarelyBiasedMLL, ExactMLL, IterativeMLL
from gpx.runs.environment import peak_memory_mib

INPUTS, LENGTHSCALE, NOISE = 4, 1.0, 0.01


def problem(n, device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64)
    noise = NOISE**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) / INPUTS**0.5 + noise
    return x.to(device), y.to(device)


def model(rank, device, product_dtype=None, memory_budget="2GiB"):
    return ExactGP(
        kernel=Matern32(ard_num_dims=INPUTS, lengthscale=[LENGTHSCALE] * INPUTS, outputscale=1.0),
        mean=Constant(),
        likelihood=Gaussian(NOISE),
        solver="iterative",
        iterative=IterativeOptions(
            rank=rank, product_dtype=product_dtype, memory_budget=memory_budget
        ),
    ).to(device, torch.float64)


def peer(x, y):
    return Regression(x, y, matern(1.5, INPUTS, LENGTHSCALE), NOISE)


def words(settings):
    return ", ".join(f"{k} {v}" for k, v in settings.items()) or "default settings"


def peer_evidence(x, y, settings, seed, gradient=True):
    """Evidence in nats, its gradient (lengthscales, outputscale, noise in natural units)."""
    found = peer(x, y)
    torch.manual_seed(seed)
    with by_iterations(**settings), torch.set_grad_enabled(gradient):
        value = found.evidence()
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


def bench_equal_accuracy(n, repeats, device):
    x, y = problem(n, device)
    truth_model = model(1, device)
    exact = ExactMLL().evidence(truth_model, x, y)
    truth, gradient = exact.value.item(), natural_gradient(exact, truth_model)

    runs = {}
    for dtype in ("float64", "float32"):
        for rank, tolerance in ((500, 0.1), (1000, 1.0)):
            objective, holder = IterativeMLL(tolerance=tolerance), model(rank, device, dtype)
            runs[f"gpx, rank {rank}, tolerance {tolerance} nats, {dtype}"] = functools.partial(
                our_evidence, objective, holder, x, y
            )
    for dtype in (torch.float64, torch.float32):
        for settings in ({}, {"rank": 100, "tolerance": 0.1, "steps": 50}):
            name = f"GPyTorch, {words(settings)}, {named(dtype)}"
            runs[name] = functools.partial(peer_evidence, x.to(dtype), y.to(dtype), settings)
    errors, off = ({name: [] for name in runs} for _ in range(2))

    def noted(name, seed):
        value, found = runs[name](seed=next(seed))
        errors[name].append(value - truth)
        off[name].append(float((found - gradient).norm() / gradient.norm()))

    work = {name: functools.partial(noted, name, itertools.count()) for name in runs}
    turns = in_turns(work, repeats, device, warm=0)
    seconds = {name: [fair([one], device) for one in seen] for name, seen in turns.items()}
    rows = [
        {
            "by": name,
            "seconds": statistics.median(seconds[name]),
            "nats off": root_mean_square(errors[name]),
            "gradient off, %": 100 * root_mean_square(off[name]),
        }
        for name in runs
    ]
    show(
        rows, f"n = {n:,}, evidence {truth:.1f} nats; value and gradient, {repeats} turns, medians"
    )
    for ours in [name for name in runs if name.startswith("gpx")]:
        alike = "float64" if "float64" in ours else "float32"
        for theirs in [n for n in runs if n.startswith("GPyTorch") and alike in n]:
            ratio = statistics.median(
                b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True)
            )
            closer = root_mean_square(errors[theirs]) / root_mean_square(errors[ours])
            line = f"{ours}: {ratio:.1f} times faster, {closer:.1f} times closer than {theirs}"
            if "default" not in theirs:  # whose error is a bias, which no number of probes cures
                line += f"; {ratio * closer**2:.1f} times faster at equal scatter by more probes"
            print(line)


def bench_barely_biased(n, seeds, device):
    x, y = problem(n, device)
    holder = model(50, device)
    with torch.no_grad():
        truth = ExactMLL().evidence(holder, x, y).value.item()
    rows = []

    def row(name, results):
        errors = [value - truth for value, _ in results]
        rows.append(
            {
                "by": name,
                "bias": statistics.mean(errors),
                "+-": statistics.stdev(errors) / len(errors) ** 0.5,
                "rms": root_mean_square(errors),
                "products": statistics.mean(count for _, count in results),
            }
        )

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
    show(rows, f"n = {n}, evidence {truth:.2f} nats, {seeds} seeds; products by column")


def large(n, dtype, device, threads):
    """Run in a process of its own, so that its peak memory is that of this evaluation."""
    torch.set_num_threads(threads)
    x, y = problem(n, device)
    # half the budget may hold the matrix: in float32 it does, in float64 tiles are evaluated anew
    holder, objective = model("auto", device, dtype, "3.3GiB"), IterativeMLL()
    draws, found = torch.Generator(x.device).manual_seed(0), []

    def evaluation():
        found.append(objective.evidence(holder, x, y, generator=draws))
        assert natural_gradient(found[0], holder).isfinite().all()

    seconds = spent(evaluation, device).wall
    (evidence,) = found
    return {
        "products": evidence.facts["products"],
        "rank": evidence.facts["preconditioner_rank"],
        "seconds": seconds,
        "steps": evidence.report.iterations,
        "GiB": peak_memory_mib(x.device) / 2**10,
        "evidence, nats": evidence.value.item(),
        "+-": evidence.parts["standard_error"].item(),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--skip-large", action="store_true")
    parser.add_argument("--table", type=int, choices=(1, 2, 3), help="one table only")
    options = parser.parse_args()
    threads, device = options.threads, options.device
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    if options.table in (None, 1):
        bench_equal_accuracy(5_000, options.repeats, device)
    if options.table in (None, 2):
        bench_barely_biased(500, options.seeds, device)
    if options.table == 3 or (options.table is None and not options.skip_large):
        runs = [(20_000, dtype, device, threads) for dtype in ("float64", "float32")]
        rows = [in_own_process(large, *run) for run in runs]
        show(rows, "n = 20,000, value and gradient, 10 probes; peak memory of the process")


if __name__ == "__main__":
    main()
