"""Time and memory of one loss and gradient of the exact GP and of SGPR, against GPyTorch.

    python scripts/bench_exact_sgpr.py --threads 2

The exact GP is also compared with plain autograd through torch's Cholesky factorisation. Runs
alternate in one process, and ratios are medians over neighbouring runs, so that other load slows
both. The limit is the time of the leading matrix operations alone, at rates measured in the same
process. Memory is what one evaluation adds to a process that has imported everything and run a tiny
problem; each figure is measured in its own process. Inputs are random with kin40k's shape.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from peers import Regression, Step, by_cholesky, matern
from tables import show
from timing import added_mib, command_line, in_own_process, in_turns, least, middle, multiply_adds
from torch import Tensor

from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, ExactGP
from gpx.objectives import CollapsedELBO, ExactMLL

DTYPES = {"float64": torch.float64, "float32": torch.float32}
NUM_INPUTS, LENGTHSCALE, NOISE = 8, 2.0, 0.1


class Sizes(NamedTuple):
    """Rows of the exact GP, rows and inducing points of SGPR, dtype, device and threads."""

    exact: int
    sgpr: int
    inducing: int
    dtype: str = "float64"
    device: str = "cpu"
    threads: int = 1


def data(n: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Random inputs (n, 8) and a smooth target with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, NUM_INPUTS, generator=generator, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x.to(sizes.device, DTYPES[sizes.dtype]), y.to(sizes.device, DTYPES[sizes.dtype])


def parts() -> dict[str, torch.nn.Module]:
    """Kernel, mean and likelihood of both models."""
    kernel = Matern32(ard_num_dims=NUM_INPUTS, lengthscale=LENGTHSCALE)
    return {"kernel": kernel, "mean": Constant(), "likelihood": Gaussian(NOISE)}


def evaluation(evidence: Callable[[], Tensor], model: torch.nn.Module) -> Step:
    """Evidence in nats and its gradient."""

    def step() -> Tensor:
        model.zero_grad()
        value = evidence()
        value.backward()
        return value.detach()

    return step


def gpx_exact(sizes: Sizes) -> Step:
    """Evidence and gradient of the exact GP in gpx."""
    x, y = data(sizes.exact, sizes)
    model, objective = ExactGP(**parts()).to(x), ExactMLL()
    return evaluation(lambda: objective.evidence(model, x, y).value, model)


def autograd_exact(sizes: Sizes) -> Step:
    """The same through autograd: kernel, Cholesky, log-determinant and solve."""
    x, y = data(sizes.exact, sizes)
    model, n = ExactGP(**parts()).to(x), len(y)

    def evidence() -> Tensor:
        identity = torch.eye(n, dtype=x.dtype, device=x.device)
        matrix = model.kernel.evaluate(x, x) + model.likelihood.noise_variance * identity
        factor = torch.linalg.cholesky(matrix)
        residual = (y - model.mean(x)).unsqueeze(1)
        fit = (residual * torch.cholesky_solve(residual, factor)).sum()
        logdet = 2.0 * factor.diagonal().log().sum()
        return -0.5 * (fit + logdet + n * math.log(2.0 * math.pi))

    return evaluation(evidence, model)


def gpytorch_exact(sizes: Sizes) -> Step:
    """The same in GPyTorch, by Cholesky."""
    x, y = data(sizes.exact, sizes)
    return Regression(x, y, matern(1.5, NUM_INPUTS, LENGTHSCALE), NOISE).step(by_cholesky)


def gpx_sgpr(sizes: Sizes) -> Step:
    """Collapsed bound and its gradient in gpx."""
    x, y = data(sizes.sgpr, sizes)
    model = SGPR(**parts(), num_inputs=NUM_INPUTS, num_inducing=sizes.inducing).to(x)
    model.place(x[: sizes.inducing])
    objective = CollapsedELBO()
    return evaluation(lambda: objective.evidence(model, x, y).value, model)


def gpytorch_sgpr(sizes: Sizes) -> Step:
    """The same in GPyTorch: InducingPointKernel and ExactMarginalLogLikelihood."""
    x, y = data(sizes.sgpr, sizes)
    kernel = matern(1.5, NUM_INPUTS, LENGTHSCALE)
    return Regression(x, y, kernel, NOISE, x[: sizes.inducing]).step()


STEPS: dict[str, dict[str, Callable[[Sizes], Step]]] = {
    "exact": {"gpx": gpx_exact, "GPyTorch": gpytorch_exact, "autograd": autograd_exact},
    "sgpr": {"gpx": gpx_sgpr, "GPyTorch": gpytorch_sgpr},
}


def limit_seconds(case: str, sizes: Sizes) -> float:
    """Time of the leading operations alone, at the rates of a product and of a factorisation.

    In multiply-adds, exact: Cholesky (n^3 / 6) and the inverse from it (n^3 / 3). SGPR: triangular
    solve and symmetric product (n M^2 / 2 each) and one product in the second pass (n M^2).
    """
    size, dtype = 3000, DTYPES[sizes.dtype]
    product = multiply_adds(dtype, sizes.device, size, 3)
    if case == "sgpr":
        return 2.0 * sizes.sgpr * sizes.inducing**2 / product
    left = torch.randn(size, size, dtype=dtype, device=sizes.device)
    positive = left @ left.mT + size * torch.eye(size, dtype=dtype, device=sizes.device)
    found = in_turns({"": lambda: torch.linalg.cholesky_ex(positive)}, 3, sizes.device)
    cholesky = size**3 / 6.0 / least(found[""]).wall
    return sizes.exact**3 * (1.0 / 6.0 / cholesky + 1.0 / 3.0 / product)


def memory(case: str, name: str, sizes: Sizes) -> float:
    """MiB that one evaluation adds; runs in its own process."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(sizes.threads)
    make = STEPS[case][name]
    make(sizes._replace(exact=100, sgpr=200, inducing=min(20, sizes.inducing)))()
    return added_mib(make(sizes), sizes.device)


def compare(case: str, sizes: Sizes, repeats: int) -> list[dict[str, object]]:
    """A row for each library."""
    steps = {name: make(sizes) for name, make in STEPS[case].items()}
    values = {name: float(step()) for name, step in steps.items()}
    times = in_turns(steps, repeats, sizes.device)
    own = {name: in_own_process(memory, case, name, sizes) for name in steps}
    limit, rows = limit_seconds(case, sizes), []
    for name, seen in times.items():
        pairs = list(zip(times["gpx"], seen, strict=True))
        rows.append(
            {
                "case": case,
                "dtype": sizes.dtype,
                "by": name,
                "seconds": middle(seen).wall,
                "over gpx": statistics.median(b.wall / a.wall for a, b in pairs),
                "processor, over gpx": statistics.median(
                    b.processor / a.processor for a, b in pairs
                ),
                "time / limit": middle(seen).wall / limit,
                "MiB": own[name],
                "MiB, over gpx": own[name] / own["gpx"] if own["gpx"] else None,
                "evidence, nats": f"{values[name]:.2f}",
            }
        )
    return rows


def main() -> None:
    parser = command_line(__doc__, threads=2, repeats=5)
    parser.add_argument("--exact", type=int, default=5000, help="data of the exact GP")
    parser.add_argument("--sgpr", type=int, default=36_000, help="data of SGPR")
    parser.add_argument("--inducing", type=int, default=512, help="inducing points of SGPR")
    parser.add_argument("--cases", nargs="+", choices=tuple(STEPS), default=tuple(STEPS))
    parser.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), default=tuple(DTYPES))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    rows = []
    for dtype in options.dtype:
        sizes = Sizes(
            *(options.exact, options.sgpr, options.inducing),
            *(dtype, options.device, options.threads),
        )
        for case in options.cases:
            rows += compare(case, sizes, options.repeats)
    sizes = f"exact n = {options.exact:,}, SGPR n = {options.sgpr:,}, M = {options.inducing}"
    show(rows, f"{sizes}, {options.device}, {options.threads} threads, {options.repeats} turns")


if __name__ == "__main__":
    main()
