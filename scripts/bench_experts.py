"""Evidence and gradient of many experts: as a batch, and one expert at a time.

    python scripts/bench_experts.py                      # 64 experts of 500 and of 100 rows
    python scripts/bench_experts.py --experts 64 --rows 50 --device cuda

One thread, float64, RBF kernel with 8 lengthscales; processor seconds (on a CUDA device: seconds),
medians of interleaved runs. "one at a time" is a loop over the exact log marginal likelihood of
gpx, with plain autograd through torch's Cholesky factorisation, and of GPyTorch. "factor and
inverse" is LAPACK's part of the batch alone, m^3 multiply-adds an expert, which no batching saves.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.inducing import RandomBlocks
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import Committee, ExactGP
from gpx.objectives import ExactMLL, ExpertsMLL
from gpx.training.allocator import keep_freed_memory


def parts(device: str) -> dict[str, torch.nn.Module]:
    made = {"kernel": RBF(8, 2.0, 1.3), "mean": Constant(0.3), "likelihood": Gaussian(0.05)}
    return {name: part.to(device, torch.float64) for name, part in made.items()}


def runs(experts: int, rows: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """What is compared, each a function that gives the evidence and leaves its gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(experts * rows, 8, generator=generator, dtype=torch.float64).to(device)
    y = x.sin().sum(1)
    committee = Committee(**parts(device), num_experts=experts, partition=RandomBlocks())
    committee.initialise(x, y, generator=torch.Generator(device).manual_seed(0))
    own = committee.expert_rows(x).rows.split(rows)
    exact, one, many = ExactGP(**parts(device)), ExactMLL(), ExpertsMLL()

    def batch() -> Tensor:
        value = many.evidence(committee, x, y).value
        value.backward()
        return value.detach()

    def loop() -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=device)
        for each in own:
            value = one.evidence(exact, x[each], y[each]).value
            value.backward()
            total += value.detach()
        return total

    def autograd() -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=device)
        eye = torch.eye(rows, dtype=torch.float64, device=device)
        for each in own:
            matrix = exact.kernel.evaluate(x[each]) + exact.likelihood.noise_variance * eye
            lower = torch.linalg.cholesky(matrix)
            residual = (y[each] - exact.mean(x[each])).unsqueeze(1)
            fit = (residual * torch.cholesky_solve(residual, lower)).sum()
            half = lower.diagonal().log().sum()
            value = -0.5 * (fit + rows * math.log(2.0 * math.pi)) - half
            value.backward()
            total += value.detach()
        return total

    matrices = torch.eye(rows, dtype=torch.float64, device=device).expand(experts, rows, rows)

    def lapack() -> Tensor:
        for each in matrices.split(max(1, 2**22 // (8 * rows * rows))):
            upper = (each + 0.0).mT
            info = torch.empty(len(each), dtype=torch.int32, device=device)
            torch.linalg.cholesky_ex(upper, upper=True, out=(upper, info))
            torch.cholesky_inverse(upper, upper=True, out=upper)
        return matrices.new_zeros(())

    found = {
        "batch": batch,
        "one at a time, gpx": loop,
        "one at a time, autograd": autograd,
        "factor and inverse": lapack,
    }
    peer = gpytorch_loop(x, y, own)
    return found if peer is None else {**found, "one at a time, GPyTorch": peer}


def gpytorch_loop(x: Tensor, y: Tensor, own: tuple[Tensor, ...]) -> Callable[[], Tensor] | None:
    """The same by GPyTorch, one model for all; None where it is not installed."""
    try:
        import gpytorch
    except ImportError:
        return None

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood) -> None:
            super().__init__(x[own[0]], y[own[0]], likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            kernel = gpytorch.kernels.RBFKernel(ard_num_dims=8)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

        def forward(self, inputs: Tensor) -> gpytorch.distributions.MultivariateNormal:
            mean, covariance = self.mean_module(inputs), self.covar_module(inputs)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood).to(x)
    model.covar_module.base_kernel.lengthscale = 2.0
    model.covar_module.outputscale = 1.3
    model.mean_module.constant = 0.3
    likelihood.noise = 0.05
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()

    def loop() -> Tensor:
        total = x.new_zeros(())
        with (
            gpytorch.settings.max_cholesky_size(10_000),
            gpytorch.settings.fast_computations(False, False, False),
        ):
            for each in own:
                model.set_train_data(x[each], y[each], strict=False)
                value = objective(model(x[each]), y[each]) * len(each)
                value.backward()
                total += value.detach()
        return total

    return loop


def measured(work: dict[str, Callable[[], Tensor]], repeats: int, device: str) -> dict[str, float]:
    """Median seconds of each, in turns; all must agree."""
    values = {name: float(run()) for name, run in work.items() if name != "factor and inverse"}
    for name, value in values.items():
        assert math.isclose(value, values["batch"], rel_tol=1e-8), (name, value, values["batch"])
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            began = clock()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(clock() - began)
    return {name: statistics.median(each) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--rows", type=int, nargs="*", default=[500, 100])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    for rows in options.rows:
        work = runs(options.experts, rows, options.device)
        found = measured(work, options.repeats, options.device)
        print(f"{options.experts} experts of {rows} rows, {options.device}")
        flops = 2.0 * options.experts * rows**3
        rate = flops / found["factor and inverse"] / 1e9
        print(f"  {flops / 1e9:.0f} GFlop of factors and inverses, {rate:.0f} GFlop/s")
        rest = found["batch"] - found["factor and inverse"]
        for name, seconds in found.items():
            beyond = (seconds - found["factor and inverse"]) / rest
            print(
                f"  {name:26s} {seconds:8.4f} s  {seconds / found['batch']:6.2f} x the batch, "
                f"{beyond:6.2f} x without factors and inverses"
            )


if __name__ == "__main__":
    main()
