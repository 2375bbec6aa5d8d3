"""Exact Gaussian processes on grids with gaps: scale, time per solver step, and GPyTorch.

    python scripts/bench_grid.py scale --shape 100,100,100 --gaps 0.01,0.2,0.5
    python scripts/bench_grid.py peer --shape 60,60 --gaps 0,0.2
    python scripts/bench_grid.py solve --shape 316,316 --gaps 0.2
    python scripts/bench_grid.py long --shape 100000,8 --gaps 0,0.2
    python scripts/bench_grid.py --device cuda

"scale": evidence and gradient through model and objective as in training, ``--evaluations`` times
with changing hyperparameters; then the time of one solver step and of its Kronecker products alone,
measured alternately. "peer": the same evidence and gradient by GPyTorch's operators, to 1e-6:
Kronecker plus diagonal on a full grid, a masked Kronecker product with gaps, and Cholesky, because
its stochastic log-determinant does not reach 1e-6. "solve": only the data fit y^T K^{-1} y and its
gradient, for grids with gaps that are too large for a Cholesky factorisation; both libraries use
conjugate gradients, to a relative error of the fit below 1e-6. "long": evidence and gradient for a
long, regular first axis, whose products use FFTs; GPyTorch is left out, as its factor would be
dense. "--who" runs one library alone, to measure its peak memory.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import Spent, in_own_process, in_turns, spent
from torch import Tensor

from gpx.data import GridStress
from gpx.kernels import AxisProduct
from gpx.likelihoods import Gaussian
from gpx.linalg import RelativeResidual, conjugate_gradients
from gpx.means import Zero
from gpx.methods.grid.gaps import GapOptions, solve_gaps
from gpx.models import GridGP
from gpx.objectives import GridMLL
from gpx.runs.environment import peak_memory_mib
from gpx.training.allocator import keep_freed_memory


def problem(shape: tuple[int, ...], share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows and standardised noisy targets of the membrane (three axes) or Rastrigin's function."""
    field = "membrane" if len(shape) == 3 else "rastrigin"
    table = GridStress(field, shape, share, noise=0.1, seed=seed).table()
    y = torch.from_numpy(table.y).to(device)
    return torch.from_numpy(table.x).to(device), (y - y.mean()) / y.std()


def model_of(d: int, gaps: str, tolerance: float) -> GridGP:
    kernel = AxisProduct("rbf", d, lengthscale=0.15)
    return GridGP(
        kernel=kernel, mean=Zero(), likelihood=Gaussian(0.05), solver=GapOptions(gaps, tolerance)
    ).to(device, torch.float64)


def step_ratio(model: GridGP, x: Tensor, y: Tensor, steps: int) -> tuple[float, float]:
    """Seconds of one solver step, and of its bare products, in turns."""
    rows = model.gridded(x)
    with torch.no_grad():
        system = model.system(rows, model.axis_kernels(rows).matrices(rows.grid))
    space, grid = (
        system.kronecker.workspace,
        torch.randn(1, system.size, dtype=y.dtype, device=device),
    )
    assert space is not None
    spectrum = system.spectrum
    filling = model.options.gaps in ("auto", "fill")
    matmul = system.missing if filling else system.observed
    size = system.num_gaps if filling else system.num_observed
    rhs = torch.randn(size, dtype=y.dtype, device=device)

    def solve(count: int) -> None:
        conjugate_gradients(
            matmul,
            rhs,
            stop=RelativeResidual(1e-30),
            max_iterations=count,
            verify=False,
            on_failure="return",
        )

    def bare() -> None:
        source = grid
        for _ in range(steps):
            source = space.product(spectrum.transposed, source)
            if filling:
                source = space.product(spectrum.vectors, source)

    work = {"twice": lambda: solve(2 * steps), "once": lambda: solve(steps), "bare": bare}
    seen = {name: [seconds_of(s) for s in each] for name, each in in_turns(work, 3, device).items()}
    per_step = [a - b for a, b in zip(seen["twice"], seen["once"], strict=True)]
    return statistics.median(per_step) / steps, statistics.median(seen["bare"]) / steps


chosen_clock, device = "wall", "cpu"
"""Whether to report processor seconds of one thread, unaffected by other load; set by ``main``."""


def timed(function: Callable[[], object]) -> float:
    return seconds_of(spent(function, device))


def seconds_of(one: Spent) -> float:
    return one.processor if chosen_clock == "cpu" and device == "cpu" else one.wall


def peak() -> float:
    return peak_memory_mib(torch.device(device)) / 2**10


def evaluated(model: GridGP, objective: GridMLL, x: Tensor, y: Tensor) -> tuple:
    """Evidence, its gradient with respect to the parameters, and the seconds taken."""
    found: list[Any] = []

    def work() -> None:
        found.append(objective.evidence(model, x, y))
        found.append(torch.autograd.grad(found[0].value, list(model.parameters())))

    seconds = timed(work)
    return *found, seconds


def scale(options: argparse.Namespace) -> None:
    for share in options.gaps:
        x, y = problem(options.shape, share, options.seed)
        model = model_of(len(options.shape), options.strategy, options.tolerance)
        objective = GridMLL(options.logdet)
        found = timed(lambda model=model, x=x: model.gridded(x))
        seconds, iterations = [], []
        for _ in range(options.evaluations):
            evidence, gradient, spent_on_it = evaluated(model, objective, x, y)
            seconds.append(spent_on_it)
            iterations.append(evidence.facts.get("solver_iterations", 0))
            with torch.no_grad():  # a step such as an optimiser takes
                for p, g in zip(model.parameters(), gradient, strict=True):
                    p.add_(0.05 * g / (g.norm() + 1e-300))
        total = sum(seconds)
        print(
            f"M={math.prod(options.shape):,} gaps={share:.0%} N={len(y):,}: "
            f"{options.evaluations} evaluations with gradient in {total:.1f} s "
            f"({', '.join(f'{s:.1f}' for s in seconds)}), CG steps {iterations}, grid found in "
            f"{found:.1f} s, evidence {float(evidence.value.detach()):.1f} "
            f"({evidence.facts['logdet']}), peak {peak():.1f} GiB",
            flush=True,
        )
        if share and options.steps:
            step, bare = step_ratio(model, x, y, options.steps)
            print(f"  solver step {step:.3f} s, bare products {bare:.3f} s: {step / bare:.2f} x")
        del model, x, y


def peer_evidence(
    factors: list[Tensor], noise: Tensor, observed: Tensor, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Evidence and gradient with respect to factors and noise, by GPyTorch's operators."""
    import gpytorch
    from linear_operator import to_linear_operator
    from linear_operator.operators import (
        ConstantDiagLinearOperator,
        KroneckerProductAddedDiagLinearOperator,
        KroneckerProductLinearOperator,
        MaskedLinearOperator,
    )

    leaves = [f.clone().requires_grad_() for f in factors]
    variance = noise.clone().requires_grad_()
    product = KroneckerProductLinearOperator(*map(to_linear_operator, leaves))
    n = y.shape[0]
    if n == observed.shape[0]:
        diagonal = ConstantDiagLinearOperator(variance.reshape(1), diag_shape=n)
        operator = KroneckerProductAddedDiagLinearOperator(product, diagonal)
    else:
        operator = MaskedLinearOperator(product, observed, observed).add_diagonal(variance)
    if n == observed.shape[0]:  # its own eigendecompositions
        fit, logdet = y @ operator.solve(y), operator.logdet()
    else:
        with gpytorch.settings.max_cholesky_size(10**6):
            fit, logdet = operator.inv_quad_logdet(y.unsqueeze(1), logdet=True)
    value = -0.5 * (fit + logdet + n * math.log(2.0 * math.pi)).squeeze()
    return value.detach(), list(torch.autograd.grad(value, [*leaves, variance]))


def peer_problem(model: GridGP, x: Tensor) -> tuple:
    """Gridded rows, their order by cell, mask of observed cells, factors and noise."""
    rows = model.gridded(x)
    observed = torch.zeros(rows.grid.size, dtype=torch.bool, device=device)
    observed[rows.cells] = True
    with torch.no_grad():
        factors = model.axis_kernels(rows).matrices(rows.grid)
    order = torch.sort(rows.cells).indices
    return rows, order, observed, factors, model.likelihood.noise_variance.detach()


def peer(options: argparse.Namespace) -> None:
    for share in options.gaps:
        x, y = problem(options.shape, share, options.seed)
        model = model_of(len(options.shape), options.strategy, 1e-10)
        objective = GridMLL("dense")
        _, order, observed, factors, noise = peer_problem(model, x)

        def ours(model=model, x=x, y=y, objective=objective) -> Tensor:  # type: ignore[no-untyped-def]
            model.warm.zero_()  # a first evaluation, not the next one
            return evaluated(model, objective, x, y)[0].value.detach()

        def theirs(factors=factors, noise=noise, observed=observed, y=y[order]) -> Tensor:  # type: ignore[no-untyped-def]
            return peer_evidence(factors, noise, observed, y)[0]

        values = [float(ours()), float(theirs())]
        times = in_turns({"ours": ours, "theirs": theirs}, options.repeats, device, warm=0)
        mine, other = (statistics.median(map(seconds_of, each)) for each in times.values())
        print(
            f"{' x '.join(map(str, options.shape))}, gaps {share:.0%}, N={len(y):,}: "
            f"gpx {mine:.3f} s, GPyTorch {other:.3f} s: {other / mine:.1f} x; evidence "
            f"{values[0]:.6f} and {values[1]:.6f} (relative {abs(values[0] / values[1] - 1):.1e})",
            flush=True,
        )


def peer_fit(
    factors: list[Tensor], noise: Tensor, observed: Tensor, y: Tensor, tolerance: float
) -> Tensor:
    """y^T (K_XX + sigma^2 I)^{-1} y and its gradient, by GPyTorch's conjugate gradients."""
    import gpytorch
    from linear_operator import to_linear_operator
    from linear_operator.operators import KroneckerProductLinearOperator, MaskedLinearOperator

    leaves = [f.clone().requires_grad_() for f in factors]
    variance = noise.clone().requires_grad_()
    product = KroneckerProductLinearOperator(*map(to_linear_operator, leaves))
    operator = MaskedLinearOperator(product, observed, observed).add_diagonal(variance)
    with (
        gpytorch.settings.max_cholesky_size(1),
        gpytorch.settings.cg_tolerance(tolerance),
        gpytorch.settings.eval_cg_tolerance(tolerance),
        gpytorch.settings.max_cg_iterations(10_000),
        gpytorch.settings.max_preconditioner_size(0),
    ):
        fit = operator.inv_quad(y.unsqueeze(1))
        torch.autograd.grad(fit, [*leaves, variance])
    return fit.detach()


def solve(options: argparse.Namespace) -> None:
    """Fit and gradient; the reference fills gaps to 1e-12."""
    for share in options.gaps:
        x, y = problem(options.shape, share, options.seed)
        model = model_of(len(options.shape), "fill", options.tolerance)
        rows, order, observed, factors, noise = peer_problem(model, x)

        def ours(rows=rows, model=model, factors=factors, y=y):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                system = model.system(rows, factors)
                found = solve_gaps(system, y, model.options)
                system.bilinear_gradient(found.alpha, found.alpha)
            return found.fit

        def theirs(factors=factors, noise=noise, observed=observed, y=y[order]) -> Tensor:  # type: ignore[no-untyped-def]
            return peer_fit(factors, noise, observed, y, options.peer_tolerance)

        with torch.no_grad():
            tight = GapOptions("fill", 1e-12)
            exact = float(solve_gaps(model.system(rows, factors), y, tight).fit)
        sides = {"gpx": ours, "GPyTorch": theirs}
        sides = {name: side for name, side in sides.items() if name in options.who}
        times = in_turns(sides, options.repeats, device, warm=0)
        found = {name: statistics.median(map(seconds_of, each)) for name, each in times.items()}
        errors = {name: abs(float(side()) / exact - 1.0) for name, side in sides.items()}
        text = ", ".join(f"{n} {t:.3f} s (error {errors[n]:.1e})" for n, t in found.items())
        ratio = f": {found['GPyTorch'] / found['gpx']:.1f} x" if len(found) == 2 else ""
        sizes = " x ".join(map(str, options.shape))
        print(f"{sizes}, gaps {share:.0%}, N={len(y):,}: {text}{ratio}, peak {peak():.2f} GiB")


def long(options: argparse.Namespace) -> None:
    m, places = options.shape
    times = torch.linspace(0.0, m / 100.0, m, dtype=torch.float64)  # lengthscale: 100 points
    whole = torch.cartesian_prod(times, torch.linspace(-1.0, 1.0, places, dtype=torch.float64))
    generator = torch.Generator().manual_seed(options.seed)
    for share in options.gaps:
        x = whole[torch.rand(len(whole), generator=generator) >= share]
        noise = torch.randn(len(x), generator=generator, dtype=x.dtype)
        y = torch.sin(x[:, 0]) + x[:, 1] * torch.sin(0.3 * x[:, 0]) + 0.3 * noise
        x, y = x.to(device), y.to(device)
        kernel = AxisProduct("matern32", 2, lengthscale=[1.0, 0.7])
        model = GridGP(
            kernel=kernel,
            mean=Zero(),
            likelihood=Gaussian(0.1),
            solver=GapOptions(tolerance=options.tolerance),
        ).to(device, torch.float64)
        objective = GridMLL(options.logdet)
        seconds, steps = [], []
        for _ in range(options.evaluations):
            model.warm.zero_()  # a first evaluation each time
            evidence, _, spent_on_it = evaluated(model, objective, x, y)
            seconds.append(spent_on_it)
            steps.append(evidence.facts["solver_iterations"])
        print(
            f"{m:,} x {places}, gaps {share:.0%}, N={len(y):,}, {model.gridded(x).grid.size:,} "
            f"cells with the circle: evidence ({evidence.facts['logdet']}) with gradient "
            f"{statistics.median(seconds):.2f} s, CG steps {steps[-1]}, peak {peak():.2f} GiB; "
            f"pairs of the long axis {8e-9 * m * m:.0f} GB",
            flush=True,
        )


ROUTINE = (
    ("scale --shape 216,216,216 --steps 3", (0.01, 0.2, 0.5)),
    ("peer --shape 60,60", (0, 0.2)),
    ("peer --shape 100,100 --repeats 1", (0.2,)),
    ("peer --shape 1000,1000", (0,)),
    ("solve --shape 316,316 --tolerance 1e-4 --peer-tolerance 1e-3", (0.01, 0.2, 0.5)),
    ("long --shape 100000,8 --evaluations 3", (0, 0.2)),
)
"""Runs if none is named, and their shares of gaps; each in its own process, for its memory."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", nargs="?", choices=("scale", "peer", "solve", "long"))
    parser.add_argument("--shape", default="100,100,100")
    parser.add_argument("--gaps", default="0.01,0.2,0.5")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--logdet", default="nystrom")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="per timing of a solver step; 0: skip")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--who", default="gpx,GPyTorch", help="of solve: gpx, GPyTorch or both")
    parser.add_argument("--peer-tolerance", type=float, default=1e-4, help="of the peer's solves")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args(arguments)
    if options.what is None:
        for line, shares in ROUTINE:
            command = f"{line} --threads {options.threads} --clock {options.clock}"
            command += f" --device {options.device}"
            print(command, flush=True)
            for share in shares:
                in_own_process(main, [*command.split(), "--gaps", str(share)])
        return
    global chosen_clock, device
    chosen_clock, device = options.clock, options.device
    options.shape = tuple(int(m) for m in options.shape.split(","))
    options.gaps = [float(s) for s in options.gaps.split(",")]
    torch.set_num_threads(options.threads)
    np.seterr(all="raise", under="ignore")
    keep_freed_memory()
    {"scale": scale, "peer": peer, "solve": solve, "long": long}[options.what](options)


if __name__ == "__main__":
    main(sys.argv[1:])
