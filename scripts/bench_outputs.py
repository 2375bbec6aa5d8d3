"""Regression with several outputs: evidence and gradient, against GPyTorch.

    python scripts/bench_outputs.py                     # 1,000 rows, 4 outputs
    python scripts/bench_outputs.py --rows 2000 --outputs 2 10 --device cuda

Float64, RBF kernel with 8 lengthscales, a full covariance of the outputs, a noise variance for
each, no missing targets. Times are medians of interleaved runs, in processor seconds of one thread
(wall-clock seconds for several threads or a GPU). Peers are GPyTorch's ``MultitaskKernel`` and
``MultitaskGaussianLikelihood``, which solve by eigendecompositions, and a loop over exact GPs of
gpx, one for each output.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import gpytorch
import torch
from peers import by_cholesky, exactly
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


class Multitask(gpytorch.models.ExactGP):
    """Intrinsic coregionalisation in GPyTorch, with the hyperparameters of ``ours``."""

    def __init__(self, ours: CoregionalGP, x: Tensor, y: Tensor) -> None:
        p = y.shape[1]
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(p, has_global_noise=False)
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), p)
        base = gpytorch.kernels.RBFKernel(ard_num_dims=INPUTS)
        self.covar_module = gpytorch.kernels.MultitaskKernel(base, num_tasks=p, rank=p)
        self.to(x).train()
        base.lengthscale = exactly(LENGTHSCALE)
        likelihood.task_noises = ours.likelihood.noise_variance.detach()
        between = self.covar_module.task_covar_module
        between.var = torch.full((p,), 1e-9, dtype=torch.float64)
        between.covar_factor.data = ours.between.root.detach().tril().clone()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultitaskMultivariateNormal:
        """The prior of all outputs at x."""
        covariance = self.covar_module(x)
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), covariance)

    def evidence(self) -> Tensor:
        """Log marginal likelihood in nats."""
        with by_cholesky():
            law = self.likelihood(self(*self.train_inputs))
            return law.log_prob(self.train_targets)


def runs(rows: int, outputs: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """Name -> function that returns the evidence and computes its gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, INPUTS, generator=generator, dtype=torch.float64).to(device)
    shifts = torch.arange(outputs, dtype=torch.float64, device=device)
    y = (x.sum(1)[:, None] + 0.3 * shifts).sin()
    likelihood = GaussianOutputs(outputs, NOISE)
    model = CoregionalGP(
        kernel=RBF(INPUTS, LENGTHSCALE, None), mean=Zero(), likelihood=likelihood
    ).to(device, torch.float64)
    model.likelihood.noise_variance = NOISE * (1.0 + shifts)
    peer, objective, alone = Multitask(model, x, y), CoregionalMLL(), ExactMLL()
    each = [
        ExactGP(kernel=model.kernel, mean=Zero(), likelihood=model.likelihood.output(place))
        for place in range(outputs)
    ]

    def with_gradient(evidence: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            value = evidence()
            value.backward()
            return value.detach()

        return step

    def apart() -> Tensor:
        return torch.stack(
            [alone.evidence(one, x, y[:, place]).value for place, one in enumerate(each)]
        ).sum()

    return {
        "together": with_gradient(lambda: objective.evidence(model, x, y).value),
        "GPyTorch": with_gradient(peer.evidence),
        "one output at a time": with_gradient(apart),
    }


def memory(rows: int, outputs: int, device: str, threads: int, name: str) -> float:
    """MiB that one evaluation adds; runs in its own process."""
    torch.set_num_threads(threads)
    runs(50, outputs, device)[name]()
    return added_mib(runs(rows, outputs, device)[name], device)


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--outputs", type=int, nargs="*", default=[2, 4])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    table = []
    for outputs in options.outputs:
        work = runs(options.rows, outputs, options.device)
        values = {name: float(run()) for name, run in work.items()}
        assert math.isclose(values["GPyTorch"], values["together"], rel_tol=1e-6), values
        sizes = options.rows, outputs, options.device, options.threads
        found = fair_in_turns(work, options.repeats, options.device)
        for name, seconds in found.items():
            table.append(
                {
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
