"""Values and all partial derivatives: evidence and gradient, against GPyTorch.

    python scripts/bench_derivatives.py                          # 300 rows, 2, 5 and 10 inputs
    python scripts/bench_derivatives.py --rows 500 --inputs 2 --device cuda

Float64, RBF and Matern 5/2 kernels with a lengthscale for each input, a noise variance for values
and for each derivative, none of them missing. Times are medians of interleaved runs, in processor
seconds of one thread (wall-clock seconds for several threads or a GPU). Peers are GPyTorch's
``RBFKernelGrad`` and ``Matern52KernelGrad`` with ``MultitaskGaussianLikelihood``, by Cholesky
factors, and an exact GP of gpx on the values alone.
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

from gpx.kernels import RBF, Matern52, Stationary
from gpx.likelihoods import GaussianOutputs
from gpx.means import Constant
from gpx.models import DerivativeGP, ExactGP
from gpx.objectives import DerivativeMLL, ExactMLL
from gpx.training.allocator import keep_freed_memory

NOISE = 0.01
KERNELS: dict[str, tuple[type[Stationary], str]] = {
    "rbf": (RBF, "RBFKernelGrad"),
    "matern52": (Matern52, "Matern52KernelGrad"),
}
TOLERANCE = 1e-8
"""Relative difference of the evidences of the libraries, beyond which nothing is timed."""


class Gradients(SeveralTargets):
    """Values and derivatives in GPyTorch, with the hyperparameters of ``ours``."""

    def __init__(self, ours: DerivativeGP, kernel: str, x: Tensor, y: Tensor) -> None:
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(
            y.shape[1], has_global_noise=False
        )
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMeanGrad()
        base = getattr(gpytorch.kernels, kernel)(ard_num_dims=x.shape[1])
        self.covar_module = gpytorch.kernels.ScaleKernel(base)
        self.to(x).train()
        own = ours.kernel
        assert isinstance(own, Stationary)
        base.lengthscale = own.lengthscale.detach()
        self.covar_module.outputscale = own.outputscale.detach()
        likelihood.task_noises = ours.likelihood.noise_variance.detach()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultitaskMultivariateNormal:
        """The prior of values and derivatives at x."""
        law = gpytorch.distributions.MultitaskMultivariateNormal
        return law(self.mean_module(x), self.covar_module(x))


def runs(kernel: str, rows: int, inputs: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """Name -> function that returns the evidence and computes its gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64).to(device)
    weights = torch.linspace(0.5, 1.5, inputs).to(x)
    phase = x @ weights
    y = torch.cat([phase.sin()[:, None], phase.cos()[:, None] * weights], 1)
    kind, theirs = KERNELS[kernel]
    model = DerivativeGP(
        kernel=kind(inputs, inputs**0.5, 1.3),
        mean=Constant(),
        likelihood=GaussianOutputs(1 + inputs, NOISE),
    ).to(device, torch.float64)
    alone = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood.output(0))
    peer, objective, exact = Gradients(model, theirs, x, y), DerivativeMLL(), ExactMLL()

    return {
        "gpx": with_gradient(lambda: objective.evidence(model, x, y).value),
        "GPyTorch": with_gradient(peer.evidence),
        "gpx, values alone": with_gradient(lambda: exact.evidence(alone, x, y[:, 0]).value),
    }


def memory(kernel: str, rows: int, inputs: int, device: str, threads: int, name: str) -> float:
    """MiB that one evaluation adds; runs in its own process."""
    torch.set_num_threads(threads)
    runs(kernel, 30, inputs, device)[name]()
    return added_mib(runs(kernel, rows, inputs, device)[name], device)


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=5)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--inputs", type=int, nargs="*", default=[2, 5, 10])
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    table = []
    for kernel, inputs in itertools.product(options.kernels, options.inputs):
        work = runs(kernel, options.rows, inputs, options.device)
        values = {name: float(run()) for name, run in work.items()}
        assert math.isclose(values["GPyTorch"], values["gpx"], rel_tol=TOLERANCE), values
        sizes = kernel, options.rows, inputs, options.device, options.threads
        found = fair_in_turns(work, options.repeats, options.device)
        for name, seconds in found.items():
            table.append(
                {
                    "kernel": kernel,
                    "inputs": inputs,
                    "way": name,
                    "seconds": seconds,
                    "over gpx": seconds / found["gpx"],
                    "MiB": in_own_process(memory, *sizes, name),
                }
            )
    show(table, f"{options.rows} rows, {options.device}, {options.threads} threads")


if __name__ == "__main__":
    main()
