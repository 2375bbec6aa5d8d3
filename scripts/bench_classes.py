"""Step time of SVGP for two and for several classes against GPyTorch and the product rate.

    python scripts/bench_classes.py --threads 1
    python scripts/bench_classes.py --device cuda

Whitened SVGP with full covariance, RBF with one lengthscale per input and learned inducing points;
the functions of all classes share kernel and inducing points, and have one q(u) each. A step is a
loss and its gradient. Two classes: probit link, in both by Gauss-Hermite quadrature of 20 nodes.
Several: the softmax. gpx integrates it without draws, to 1e-6 nats; GPyTorch takes 10 random draws
of the latent functions, its default. ``scatter``: standard deviation of the loss per row over
repeated steps from the same parameters, zero where nothing is drawn. Outputscale 1 is the start; at
9 latent functions are as wide as in trained models, and gpx takes more points (GPyTorch's time does
not depend on it).

Steps alternate, so that other load slows all of them; times are medians, of the processor where
there is one thread of it. The limit is the time of the unavoidable products alone at the rate of a
large matrix product, measured in the same run; exponentials are no part of it. MiB: most memory of
tensors made in a step that are held at once.
"""

from __future__ import annotations

import itertools
import statistics
import warnings

import torch
from peers import Sparse, Step, rbf
from tables import show
from timing import command_line, fair_in_turns, multiply_adds, named, tensors_mib
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Softmax
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO

NUM_DATA, LENGTHSCALE, NUM_INPUTS = 36_000, 2.0, 8
CLASSES = 2, 3, 10
SCATTER_STEPS = 10


def our_step(inducing: Tensor, x: Tensor, y: Tensor, classes: int, scale: float) -> Step:
    """A loss and its gradient; y: labels 0, 1, ..."""
    model = SVGP(
        kernel=RBF(NUM_INPUTS, LENGTHSCALE, scale),
        mean=Zero(),
        likelihood=Bernoulli("probit") if classes == 2 else Softmax(classes),
        num_inputs=NUM_INPUTS,
        num_inducing=len(inducing),
    ).to(x)
    model.place(inducing)
    objective, labels = SVGPELBO(NUM_DATA), 2.0 * y - 1.0 if classes == 2 else y

    def step() -> Tensor:
        model.zero_grad()
        loss = objective(model, x, labels)
        loss.backward()
        return loss.detach()

    return step


def their_step(inducing: Tensor, x: Tensor, y: Tensor, classes: int, scale: float) -> Step:
    """The same by GPyTorch."""
    kernel = rbf(NUM_INPUTS, LENGTHSCALE, scale)
    return Sparse(inducing, kernel, None, classes=classes).step(x, y, NUM_DATA)


def least_multiply_adds(size: int, batch: int, classes: int) -> float:
    """Multiply-adds of one loss and gradient if no known zero is multiplied.

    Products with an M x M triangle, M^2 B / 2 each: A, L^{-T} dA and Phi once; S^T A, S (S^T A) and
    dS for every function. Factorisation, inverse and the gradient of K_zz: about M^3.
    """
    functions = 1 if classes == 2 else classes
    return 1.5 * (1 + functions) * size**2 * batch + size**3


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=10)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--inducing", type=int, nargs="+", default=(128, 512))
    parser.add_argument("--batch", type=int, nargs="+", default=(256, 1024))
    parser.add_argument("--outputscale", type=float, nargs="+", default=(1.0, 9.0))
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    cases = list(itertools.product(args.classes, args.inducing, args.batch, args.outputscale))
    for dtype in (torch.float32, torch.float64):
        rows = []
        for classes, size, batch, scale in cases:
            generator = torch.Generator().manual_seed(0)
            z, x = (
                torch.randn(n, NUM_INPUTS, generator=generator, dtype=dtype).to(args.device)
                for n in (size, batch)
            )
            y = torch.randint(classes, (batch,), generator=generator).to(x)
            data = z, x, y, classes, scale
            steps = {"gpx": our_step(*data), "GPyTorch": their_step(*data)}
            times = fair_in_turns(steps, args.repeats, args.device)
            memory = {name: tensors_mib(step, args.device) for name, step in steps.items()}
            rate = multiply_adds(dtype, args.device)  # under the load of this case
            limit = least_multiply_adds(size, batch, classes) / rate
            for name, seconds in times.items():
                losses = [float(steps[name]()) for _ in range(SCATTER_STEPS)]
                rows.append(
                    {
                        "classes": classes,
                        "M": size,
                        "batch": batch,
                        "outputscale": scale,
                        "step of": name,
                        "ms": 1e3 * seconds,
                        "over gpx": seconds / times["gpx"],
                        "time / limit": seconds / limit,
                        "MiB": memory[name],
                        "MiB, over gpx": memory[name] / memory["gpx"],
                        "loss": f"{statistics.fmean(losses):.5f}",
                        "scatter": statistics.stdev(losses),
                    }
                )
        title = f"{named(dtype)}, d = {NUM_INPUTS}, {args.device}, {args.threads} threads"
        show(rows, f"{title}, medians of {args.repeats}")


if __name__ == "__main__":
    main()
