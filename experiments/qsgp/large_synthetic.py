"""n = 10^6 points, m = 10^6 basis functions: three stochastic methods after equal training time.

    python experiments/qsgp/large_synthetic.py [--quick] [--seconds S]

Targets are a sum of 4,000 random waves of an SE kernel over 8 inputs plus noise; every method has
the true hyperparameters, so what differs is the approximation and its optimiser: stochastic natural
gradients on blocks (optimizer=qsgp_stochastic_blocks), the published AdaGrad on sampled gradients
(optimizer=qsgp_paper), and SVGP with 512 inducing points. Nothing is published for this setting.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import write
from torch import Tensor

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGP, SVGP, Model
from gpx.objectives import Objective, QuadruplyStochasticELBO, SVGPELBO
from gpx.training import BlockSteps, FirstOrder

HERE = Path(__file__).resolve().parent

INPUTS, TEST, NOISE, LENGTHSCALE = 8, 2000, 0.01, 2.0


def kernel() -> RBF:
    """The kernel that the targets are drawn from."""
    return RBF(ard_num_dims=INPUTS, lengthscale=LENGTHSCALE, outputscale=1.0)


def draw(num: int) -> tuple[Tensor, Tensor]:
    """Inputs (num, 8) and noisy targets, float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num, INPUTS, generator=generator)
    truth = RandomFourier(kernel(), 4000, seed=12345)
    weights = torch.randn(4000, generator=generator)
    with torch.no_grad():
        f = torch.cat([truth(rows) @ weights for rows in x.split(4096)])
    return x, f + NOISE**0.5 * torch.randn(num, generator=generator)


def score(model: Model, x: Tensor, y: Tensor) -> tuple[float, float]:
    """RMSE and mean negative log predictive density."""
    with torch.no_grad():
        mean, variance = model.condition(x[:1], y[:1]).predict(x)
        density = torch.distributions.Normal(mean, (variance + NOISE).sqrt()).log_prob(y)
    return float((mean - y).square().mean().sqrt()), -float(density.mean())


def timed(seconds: float, step: Callable[[int], None]) -> tuple[int, float]:
    """Repeat ``step`` until the time is over: steps done, seconds they took."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        step(count)
        count += 1
    return count, time.perf_counter() - started


def first_order(
    model: Model, objective: Objective, x: Tensor, y: Tensor, optimizer: FirstOrder, batch: int
) -> Callable[[int], None]:
    """A step of a first-order optimiser with fixed hyperparameters."""
    generator = torch.Generator().manual_seed(0)
    groups = model.parameter_groups()
    for parameter in groups.pop("hyperparameters"):
        parameter.requires_grad_(False)
    optimizer.bind(groups, 100_000)

    def step(count: int) -> None:
        optimizer.before_step(count)
        rows = torch.randint(x.shape[0], (batch,), generator=generator)
        objective(model, x[rows], y[rows], generator=generator).backward()
        optimizer.step(count)
        objective.after_step(model)

    return step


def qsgp(num_basis: int, **options: Any) -> QSGP:
    return QSGP(
        kernel(), Zero(), Gaussian(NOISE), num_basis, diagonal_rows=50, warm_start=False, **options
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of n and m")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time per method")
    arguments = parser.parse_args()
    size = 100_000 if arguments.quick else 1_000_000
    x, y = draw(size + TEST)
    test, x, y = (x[:TEST], y[:TEST]), x[TEST:], y[TEST:]
    generator = torch.Generator().manual_seed(0)
    rows = []

    def record(name: str, model: Model, step: Callable[[int], None]) -> None:
        steps, seconds = timed(arguments.seconds, step)
        rmse, mnlp = score(model, *test)
        rows.append(
            {
                "method": name,
                "n": size,
                "RMSE": round(rmse, 4),
                "MNLP": round(mnlp, 4),
                "steps": steps,
                "ms / step": round(1e3 * seconds / steps, 1),
                "seconds": round(seconds, 1),
            }
        )

    blocks = qsgp(
        size, covariance="block_diagonal", block_columns=2000, covariance_storage="float16"
    )
    blocks.initialise(x, y, generator=generator)
    natural = BlockSteps(sweeps=1e6, rows=min(10_000, size), stand_in_groups=1, columns=20_000)
    natural.check(blocks, size)
    natural.bind(blocks, x, seed=0)
    record("block natural gradient", blocks, lambda k: _advance(natural, k, x, y, generator))

    sampled = qsgp(size)
    sampled.initialise(x, y, generator=generator)
    objective = QuadruplyStochasticELBO(size)
    objective.prepare(sampled, x, y, generator=generator)
    paper = FirstOrder({"variational": {"algorithm": "adagrad", "lr": 0.1}})
    record("AdaGrad (paper)", sampled, first_order(sampled, objective, x, y, paper, 500))

    inducing = SVGP(
        kernel=kernel(), mean=Zero(), likelihood=Gaussian(NOISE), num_inputs=INPUTS, num_data=size
    )
    inducing.initialise(x[:20_000], y[:20_000], generator=generator)
    adam = {"algorithm": "adam", "lr": 0.01}
    rates = FirstOrder({"variational": adam, "inducing": adam})
    record("SVGP-512", inducing, first_order(inducing, SVGPELBO(size), x, y, rates, 1024))

    best = min(rows, key=lambda row: row["RMSE"])["method"]
    write(
        HERE,
        "large_synthetic",
        f"n = m = {size:,}: equal training time, {arguments.seconds:.0f} s each",
        ["Known hyperparameters; noise standard deviation 0.1; unpublished setting."],
        rows,
        {"the block step has the lowest RMSE": best == "block natural gradient"},
    )


def _advance(steps: BlockSteps, k: int, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    steps.step(k, x, y, generator=generator)


if __name__ == "__main__":
    main()
