"""Step time of SVGP against GPyTorch and the machine's own product rate.

    python scripts/bench_svgp.py --threads 2
    python scripts/bench_svgp.py --device cuda

Whitened SVGP with full covariance, Gaussian likelihood, RBF with one lengthscale per input and
learned inducing points; GPyTorch with both of its strategies. A step is a loss and its gradient, or
one of training: natural gradients for q(u), Adam for the rest. Steps alternate, so that other load
slows all of them; times are medians. The limit is the time of the unavoidable products alone at the
rate of a large matrix product, measured in the same run. MiB: most memory of tensors made in a step
that are held at once.
"""

from __future__ import annotations

import warnings

import torch
from peers import Sparse, Step, rbf
from tables import show
from timing import command_line, in_turns, middle, multiply_adds, named, tensors_mib
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO
from gpx.training import FirstOrder

NUM_DATA, LENGTHSCALE, NOISE = 36_000, 2.0, 0.1
RATE, REST_RATE = 0.1, 0.02
"""Of natural gradients, and of Adam."""
TRAINING = "gpx, training", "GPyTorch, training"
"""Names of steps with those of the optimisers."""


def our_model(inducing: Tensor, x: Tensor) -> SVGP:
    size, num_inputs = inducing.shape
    model = SVGP(
        kernel=RBF(ard_num_dims=num_inputs, lengthscale=LENGTHSCALE),
        mean=Zero(),
        likelihood=Gaussian(NOISE),
        num_inputs=num_inputs,
        num_inducing=size,
    ).to(x)
    model.place(inducing)
    return model


def our_step(inducing: Tensor, x: Tensor, y: Tensor) -> Step:
    """A loss and its gradient."""
    model, objective = our_model(inducing, x), SVGPELBO(NUM_DATA)

    def step() -> Tensor:
        model.zero_grad()
        loss = objective(model, x, y)
        loss.backward()
        return loss.detach()

    return step


def our_training_step(inducing: Tensor, x: Tensor, y: Tensor) -> Step:
    """A step as ``approx=svgp`` trains: a natural gradient step of q(u), Adam for the rest."""
    model, objective = our_model(inducing, x), SVGPELBO(NUM_DATA)
    rest = {"algorithm": "adam", "lr": REST_RATE}
    natural = {"algorithm": "natural", "lr": RATE}
    optimizer = FirstOrder({"variational": natural, "inducing": rest, "hyperparameters": rest})
    optimizer.bind(model.parameter_groups(), 10**6, model, NUM_DATA)

    def step() -> Tensor:
        optimizer.before_step(0)
        loss = objective(model, x, y)
        loss.backward()
        optimizer.step(0)
        return loss.detach()

    return step


def least_multiply_adds(size: int, batch: int) -> float:
    """Multiply-adds of one loss and gradient if no known zero is multiplied.

    Without the step of an optimiser. Products with an M x M triangle: A, S^T A, S (S^T A),
    L^{-T} dA, and two triangular results, dS and Phi: six of M^2 B / 2. Factorisation, inverse and
    the gradient of K_zz: about M^3.
    """
    return 3.0 * size**2 * batch + size**3


def main() -> None:
    parser = command_line(__doc__, threads=2, repeats=30)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--inputs", type=int, default=8)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    rows = []
    for dtype in (torch.float32, torch.float64):
        draws = torch.Generator().manual_seed(0)
        z, x, y = (
            torch.randn(shape, generator=draws, dtype=dtype).to(args.device)
            for shape in ((args.inducing, args.inputs), (args.batch, args.inputs), (args.batch,))
        )
        kernels = rbf(args.inputs, LENGTHSCALE), rbf(args.inputs, LENGTHSCALE)
        steps = {
            "gpx": our_step(z, x, y),
            "GPyTorch": Sparse(z, kernels[0], NOISE).step(x, y, NUM_DATA),
            "GPyTorch, large batch": Sparse(z, kernels[1], NOISE, large_batch=True).step(
                x, y, NUM_DATA
            ),
        }
        ours, theirs = TRAINING
        steps[ours] = our_training_step(z, x, y)
        steps[theirs] = Sparse(z, rbf(args.inputs, LENGTHSCALE), NOISE, natural=True).training_step(
            x, y, NUM_DATA, RATE, REST_RATE
        )
        losses = {name: float(step()) for name, step in steps.items()}
        times = {k: middle(v) for k, v in in_turns(steps, args.repeats, args.device).items()}
        memory = {name: tensors_mib(step, args.device) for name, step in steps.items()}
        rate = multiply_adds(dtype, args.device)
        limit = least_multiply_adds(args.inducing, args.batch) / rate
        for name, (wall, processor) in times.items():
            ours = TRAINING[0] if name in TRAINING else "gpx"
            own = times[ours]
            rows.append(
                {
                    "dtype": named(dtype),
                    "step of": name,
                    "wall, ms": 1e3 * wall,
                    "over gpx": wall / own.wall,
                    "processor, ms": 1e3 * processor,
                    "processor, over gpx": processor / own.processor,
                    "time / limit": wall / limit,
                    "MiB": memory[name],
                    "MiB, over gpx": memory[name] / memory[ours],
                    "loss": f"{losses[name]:.5f}",
                }
            )
    sizes = f"M = {args.inducing}, batch {args.batch}, d = {args.inputs}"
    show(rows, f"{sizes}, {args.device}, {args.threads} threads, medians of {args.repeats}")


if __name__ == "__main__":
    main()
