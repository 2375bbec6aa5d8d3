"""Evidence and gradient of many experts: as a batch, and one expert at a time.

    python scripts/bench_experts.py                      # 64 experts of 500 and of 100 rows
    python scripts/bench_experts.py --experts 64 --rows 50 --device cuda

Float64, RBF kernel with 8 lengthscales; medians of interleaved runs, in processor seconds of one
thread (wall-clock seconds for several threads or a GPU). "one at a time" is a loop over the exact
log marginal likelihood of gpx, with plain autograd through torch's Cholesky factorisation, and of
GPyTorch, whose "batch mode" takes all experts as one batch. "factor and inverse" is the time in
LAPACK alone, m^3 / 2 multiply-adds per expert, which batching cannot reduce.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from peers import Regression, by_cholesky, exactly, rbf
from tables import show
from timing import command_line, fair_in_turns
from torch import Tensor

from gpx.inducing import RandomBlocks
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import Committee, ExactGP
from gpx.objectives import ExactMLL, ExpertsMLL
from gpx.training.allocator import keep_freed_memory

LENGTHSCALE, OUTPUTSCALE, MEAN, NOISE = 2.0, 1.3, 0.3, 0.05
LAPACK = "factor and inverse"


def parts(device: str) -> dict[str, torch.nn.Module]:
    kernel = RBF(8, LENGTHSCALE, OUTPUTSCALE)
    made = {"kernel": kernel, "mean": Constant(MEAN), "likelihood": Gaussian(NOISE)}
    return {name: part.to(device, torch.float64) for name, part in made.items()}


def summed(each_of: list[Callable[[], Tensor]]) -> Callable[[], Tensor]:
    """Sum of the evidences, with gradients."""

    def total() -> Tensor:
        values = []
        for evidence in each_of:
            values.append(evidence())
            values[-1].backward()
        return torch.stack([v.detach() for v in values]).sum()

    return total


def runs(experts: int, rows: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """Name -> function that returns the evidence and computes its gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(experts * rows, 8, generator=generator, dtype=torch.float64).to(device)
    y = x.sin().sum(1)
    committee = Committee(**parts(device), num_experts=experts, partition=RandomBlocks())
    committee.initialise(x, y, generator=torch.Generator(device).manual_seed(0))
    own = committee.expert_rows(x).rows.split(rows)
    exact, one, many = ExactGP(**parts(device)), ExactMLL(), ExpertsMLL()
    eye = torch.eye(rows, dtype=torch.float64, device=device)

    def alone(each: Tensor) -> Tensor:
        return one.evidence(exact, x[each], y[each]).value

    def autograd(each: Tensor) -> Tensor:
        matrix = exact.kernel.evaluate(x[each]) + exact.likelihood.noise_variance * eye
        lower = torch.linalg.cholesky(matrix)
        residual = (y[each] - exact.mean(x[each])).unsqueeze(1)
        fit = (residual * torch.cholesky_solve(residual, lower)).sum()
        half = lower.diagonal().log().sum()
        return -0.5 * (fit + rows * math.log(2.0 * math.pi)) - half

    peer = Regression(x[own[0]], y[own[0]], rbf(8, LENGTHSCALE, OUTPUTSCALE), NOISE)
    peer.mean_module.constant = exactly(MEAN)

    def theirs(each: Tensor) -> Tensor:
        peer.set_train_data(x[each], y[each], strict=False)
        with by_cholesky():
            return peer.evidence()

    stacked = torch.stack(own)
    batch = Regression(x[stacked], y[stacked], rbf(8, LENGTHSCALE, OUTPUTSCALE), NOISE)
    batch.mean_module.constant = exactly(MEAN)

    def theirs_together() -> Tensor:
        with by_cholesky():
            return batch.evidence()

    matrices = eye.expand(experts, rows, rows)

    def lapack() -> None:
        for each in matrices.split(max(1, 2**22 // (8 * rows * rows))):
            upper = (each + 0.0).mT
            info = torch.empty(len(each), dtype=torch.int32, device=device)
            torch.linalg.cholesky_ex(upper, upper=True, out=(upper, info))
            torch.cholesky_inverse(upper, upper=True, out=upper)

    def loop(evidence: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
        return summed([lambda each=each: evidence(each) for each in own])

    return {
        "batch": summed([lambda: many.evidence(committee, x, y).value]),
        "one at a time, gpx": loop(alone),
        "one at a time, autograd": loop(autograd),
        LAPACK: lapack,
        "batch mode, GPyTorch": summed([theirs_together]),
        "one at a time, GPyTorch": loop(theirs),
    }


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=5)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--rows", type=int, nargs="*", default=[500, 100])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    table = []
    for rows in options.rows:
        work = runs(options.experts, rows, options.device)
        values = {name: float(run()) for name, run in work.items() if name != LAPACK}
        for name, value in values.items():
            assert math.isclose(value, values["batch"], rel_tol=1e-8), (name, value, values)
        found = fair_in_turns(work, options.repeats, options.device)
        rest = found["batch"] - found[LAPACK]
        rate = f" ({1e-9 * options.experts * rows**3 / found[LAPACK]:.0f} GFlop/s)"
        for name, seconds in found.items():
            table.append(
                {
                    "rows": rows,
                    "way": name + rate * (name == LAPACK),
                    "seconds": seconds,
                    "over the batch": seconds / found["batch"],
                    "over it, without factors and inverses": (seconds - found[LAPACK]) / rest,
                }
            )
    show(table, f"{options.experts} experts, {options.device}, {options.threads} threads")


if __name__ == "__main__":
    main()
