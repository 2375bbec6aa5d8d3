"""Regression with several outputs: evidence and gradient, against GPyTorch.

    python scripts/bench_outputs.py                     # 1,000 rows, 2 and 4 outputs
    python scripts/bench_outputs.py --rows 2000 --outputs 2 10 --device cuda
    python scripts/bench_outputs.py --latents 2 --outputs 2 3

Float64, RBF kernels with 8 lengthscales, covariances of the outputs of rank one and a variance of
each, a noise variance for each, no missing targets. Times are medians of interleaved runs, in
processor seconds of one thread (wall-clock seconds for several threads or a GPU). Peers are
GPyTorch's ``MultitaskKernel`` (one latent process) and ``LCMKernel`` (several) with
``MultitaskGaussianLikelihood``, the first solved by eigendecompositions and the second by Cholesky
factors, and a loop over exact GPs of gpx, one for each output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import gpytorch
import torch
from peers import SeveralTargets, with_gradient
from tables import show
from timing import added_mib, command_line, fair_in_turns, in_own_process
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import GaussianOutputs
from gpx.means import Zero
from gpx.models import CoregionalGP, ExactGP
from gpx.objectives import CoregionalMLL, ExactMLL
from gpx.training.allocator import keep_freed_memory

INPUTS, LENGTHSCALE, NOISE = 8, 2.0, 0.05
TOLERANCE = 1e-8
"""Relative difference of the evidences of the libraries, beyond which nothing is timed."""


class Multitask(SeveralTargets):
    """Coregionalisation in GPyTorch, with the hyperparameters of ``ours``."""

    def __init__(self, ours: CoregionalGP, x: Tensor, y: Tensor) -> None:
        p, kernels = y.shape[1], gpytorch.kernels
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(p, has_global_noise=False)
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), p)
        bases = [kernels.RBFKernel(ard_num_dims=INPUTS) for _ in ours.latents]
        if len(bases) == 1:
            self.covar_module = kernels.MultitaskKernel(bases[0], num_tasks=p, rank=1)
            parts = [self.covar_module]
        else:
            self.covar_module = kernels.LCMKernel(bases, num_tasks=p, rank=1)
            parts = list(self.covar_module.covar_module_list)
        self.to(x).train()
        likelihood.task_noises = ours.likelihood.noise_variance.detach()
        for part, base, latent in zip(parts, bases, ours.latents, strict=True):
            base.lengthscale = latent.kernel.lengthscale.detach()
            part.task_covar_module.var = latent.between.own_variance.detach()
            part.task_covar_module.covar_factor.data = latent.between.root.detach().clone()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultitaskMultivariateNormal:
        """The prior of all outputs at x."""
        covariance = self.covar_module(x)
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), covariance)


def runs(rows: int, outputs: int, latents: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """Name -> function that returns the evidence and computes its gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, INPUTS, generator=generator, dtype=torch.float64).to(device)
    shifts = torch.arange(outputs, dtype=torch.float64, device=device)
    y = (x.sum(1)[:, None] + 0.3 * shifts).sin()
    likelihood = GaussianOutputs(outputs, NOISE)
    model = CoregionalGP(
        kernel=RBF(INPUTS, LENGTHSCALE, None),
        mean=Zero(),
        likelihood=likelihood,
        num_latents=latents,
        rank=1,
    ).to(device, torch.float64)
    model.likelihood.noise_variance = NOISE * (1.0 + shifts)
    for place, latent in enumerate(model.latents):
        latent.kernel.lengthscale = LENGTHSCALE * (1.0 + place)
        latent.between.root.data = (1.0 + place + shifts).sin()[:, None]
        latent.between.own_variance = 0.1 * (1.0 + place)
    peer, objective, alone = Multitask(model, x, y), CoregionalMLL(), ExactMLL()
    each = [
        ExactGP(
            kernel=model.latents[0].kernel, mean=Zero(), likelihood=model.likelihood.output(place)
        )
        for place in range(outputs)
    ]

    def apart() -> Tensor:
        return torch.stack(
            [alone.evidence(one, x, y[:, place]).value for place, one in enumerate(each)]
        ).sum()

    return {
        "together": with_gradient(lambda: objective.evidence(model, x, y).value),
        "GPyTorch": with_gradient(peer.evidence),
        "one output at a time": with_gradient(apart),
    }


def memory(rows: int, outputs: int, latents: int, device: str, threads: int, name: str) -> float:
    """MiB that one evaluation adds; runs in its own process."""
    torch.set_num_threads(threads)
    runs(50, outputs, latents, device)[name]()
    return added_mib(runs(rows, outputs, latents, device)[name], device)


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--outputs", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--latents", type=int, nargs="*", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    table = []
    for latents, outputs in itertools.product(options.latents, options.outputs):
        work = runs(options.rows, outputs, latents, options.device)
        values = {name: float(run()) for name, run in work.items()}
        assert math.isclose(values["GPyTorch"], values["together"], rel_tol=TOLERANCE), values
        sizes = options.rows, outputs, latents, options.device, options.threads
        found = fair_in_turns(work, options.repeats, options.device)
        for name, seconds in found.items():
            table.append(
                {
                    "latents": latents,
                    "outputs": outputs,
                    "way": name,
                    "seconds": seconds,
                    "over together": seconds / found["together"],
                    "MiB": in_own_process(memory, *sizes, name),
                }
            )
    show(table, f"{options.rows} rows, {options.device}, {options.threads} threads")


if __name__ == "__main__":
    main()
