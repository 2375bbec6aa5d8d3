"""Step time of SVGP (loss and gradient) against GPyTorch and the machine's own product rate.

    python scripts/bench_svgp.py --threads 2
    python scripts/bench_svgp.py --device cuda

Whitened SVGP, full covariance, Gaussian likelihood, RBF with one lengthscale per input, inducing
points learned. Steps of both libraries alternate, so that other load on the machine hits both; wall
and processor time are medians. The last columns compare with the time that the unavoidable products
alone would take at the rate of a large matrix product measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import gpytorch
import torch
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO

NUM_DATA = 36_000


class PeerModel(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        strategy = gpytorch.variational.VariationalStrategy(
            self, inducing, distribution, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1])
        )

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def our_step(inducing: Tensor, x: Tensor, y: Tensor) -> Callable[[], float]:
    size, num_inputs = inducing.shape
    model = SVGP(
        kernel=RBF(ard_num_dims=num_inputs, lengthscale=2.0),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=num_inputs,
        num_inducing=size,
    ).to(x)
    model.place(inducing)
    objective = SVGPELBO(NUM_DATA)

    def step() -> float:
        model.zero_grad()
        loss = objective(model, x, y)
        loss.backward()
        return loss.item()

    return step


def peer_step(inducing: Tensor, x: Tensor, y: Tensor) -> Callable[[], float]:
    model = PeerModel(inducing.clone()).to(x)
    model.covar_module.outputscale = 1.0
    model.covar_module.base_kernel.lengthscale = 2.0
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
    likelihood.noise = 0.1
    # the mean starts at the prior's, as ours does, instead of a random place
    model.variational_strategy.variational_params_initialized.fill_(1)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_DATA)
    model.train()

    def step() -> float:
        model.zero_grad()
        likelihood.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        return loss.item()

    return step


def product_rate(dtype: torch.dtype, device: str, size: int = 1536) -> float:
    """Operations per second of a square matrix product, best of five."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # a GPU answers when the product is done
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def least_operations(size: int, batch: int) -> float:
    """Operations of one loss and gradient when no multiplication by a known zero is made.

    Products with an M x M triangle: A, S^T A, S (S^T A), L^{-T} dA, and two triangular results,
    dS and Phi: six of M^2 B. Factorisation, inverse and the gradient of K_zz: about 2 M^3.
    """
    return 6.0 * size**2 * batch + 2.0 * size**3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    print(
        f"M = {args.inducing}, batch {args.batch}, d = {args.inputs}, {args.device}, "
        f"{args.threads} threads, "
        f"torch {torch.__version__}, gpytorch {gpytorch.__version__}; milliseconds per step"
    )
    print(
        f"{'dtype':8} {'wall: gpx':>10} {'GPyTorch':>9} {'ratio':>6} {'processor: gpx':>15} "
        f"{'GPyTorch':>9} {'ratio':>6} {'GFlop/s':>8} {'bound':>6} {'gpx/bound':>10}  losses"
    )
    for dtype in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(0)

        def normal(
            *shape: int, dtype: torch.dtype = dtype, generator: torch.Generator = generator
        ) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=dtype).to(args.device)

        inputs = normal(args.inducing, args.inputs), normal(args.batch, args.inputs)
        targets = normal(args.batch)
        steps = {"gpx": our_step(*inputs, targets), "peer": peer_step(*inputs, targets)}
        losses = {name: step() for name, step in steps.items()}
        walls: dict[str, list[float]] = {name: [] for name in steps}
        processors: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(args.repeats):
            for name, step in steps.items():
                wall, processor = time.perf_counter(), time.process_time()
                step()
                walls[name].append(1e3 * (time.perf_counter() - wall))
                processors[name].append(1e3 * (time.process_time() - processor))
        wall_ours, wall_peer = (statistics.median(walls[name]) for name in ("gpx", "peer"))
        cpu_ours, cpu_peer = (statistics.median(processors[name]) for name in ("gpx", "peer"))
        rate = product_rate(dtype, args.device)
        bound = 1e3 * least_operations(args.inducing, args.batch) / rate
        print(
            f"{str(dtype).removeprefix('torch.'):8} {wall_ours:10.1f} {wall_peer:9.1f} "
            f"{wall_peer / wall_ours:6.2f} {cpu_ours:15.1f} {cpu_peer:9.1f} "
            f"{cpu_peer / cpu_ours:6.2f} {rate / 1e9:8.0f} {bound:6.1f} {wall_ours / bound:10.2f}"
            f"  {losses['gpx']:.5f} {losses['peer']:.5f}"
        )


if __name__ == "__main__":
    main()
