"""Several targets, each with hyperparameters of its own: evidence and training, against GPyTorch.

    python scripts/bench_independent.py
    python scripts/bench_independent.py --sizes 100x100 1000x8 --device cuda
    python scripts/bench_independent.py --sizes --searches 50x50 100x100

Float64, RBF kernels with 4 lengthscales, outputscale, constant mean and noise of each target, no
missing ones. Sizes are rows x targets. Times are medians of interleaved runs, in processor seconds
of one thread (wall-clock seconds for several threads or a GPU). Of ``--sizes``: evidence of all
targets and its gradient, by ``IndependentMLL``, by GPyTorch in batch mode (``batch_shape``), solved
by Cholesky factors, and by ``ExactMLL`` for one target after the other. Of ``--searches``: training
from the same start until the relative decrease is below 1e-10 or after 100 evaluations, by
``SeparateLBFGSB``, by one search of the summed evidence, and by a search for one target after the
other, both SciPy's (``LBFGSB``); "lost" is the evidence that a way lacks to the best of all three,
summed over the targets, and "most lost" that of a single target, in nats.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable

import gpytorch
import torch
from peers import SeveralTargets, with_gradient
from tables import show
from timing import added_mib, command_line, fair_in_turns, in_own_process
from torch import Tensor, nn

from gpx.kernels import RBF
from gpx.likelihoods import GaussianOutputs
from gpx.means import Constant
from gpx.methods.independent.evidence import target_evidences
from gpx.models import ExactGP, IndependentGP
from gpx.objectives import ExactMLL, IndependentMLL
from gpx.training import LBFGSB
from gpx.training.allocator import keep_freed_memory
from gpx.training.separate_lbfgsb import SeparateProblem

INPUTS, NOISE, EVALUATIONS = 4, 0.1, 100
TOLERANCE = 1e-8
"""Relative difference of the evidences of the libraries, beyond which nothing is timed."""


class Batch(SeveralTargets):
    """GPyTorch's batch mode, with the hyperparameters of ``ours``."""

    def __init__(self, ours: IndependentGP, x: Tensor, y: Tensor) -> None:
        shape = torch.Size([y.shape[1]])
        likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape)
        super().__init__(x.expand(*shape, *x.shape), y.mT.contiguous(), likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=INPUTS, batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=shape)
        self.to(x).train()
        kernels = [each.kernel for each in ours.parts]
        rbf.lengthscale = torch.stack([k.lengthscale.detach() for k in kernels]).unsqueeze(1)
        self.covar_module.outputscale = torch.stack([k.outputscale.detach() for k in kernels])
        likelihood.noise = ours.likelihood.noise_variance.detach().unsqueeze(1)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The priors of all targets at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def problem(rows: int, targets: int, device: str) -> tuple[IndependentGP, Tensor, Tensor]:
    """A model, inputs and targets that differ in scale and smoothness."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, INPUTS, generator=generator, dtype=torch.float64)
    weights = torch.randn(INPUTS, targets, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, targets, generator=generator, dtype=torch.float64)
    y = (x @ weights).sin() + NOISE**0.5 * noise
    model = IndependentGP(
        kernel=RBF(INPUTS), mean=Constant(), likelihood=GaussianOutputs(targets, NOISE)
    )
    return model.to(device, torch.float64), x.to(device), y.to(device)


def alone(model: IndependentGP) -> list[ExactGP]:
    """An exact process for every target."""
    parts = copy.deepcopy(model.parts)
    return [
        ExactGP(kernel=own.kernel, mean=own.mean, likelihood=model.likelihood.output(place))
        for place, own in enumerate(parts)
    ]


def runs(rows: int, targets: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """Name -> function that returns the evidence of all targets and computes its gradient."""
    model, x, y = problem(rows, targets, device)
    peer, objective, one = Batch(model, x, y), IndependentMLL(), ExactMLL()
    each = alone(model)

    def apart() -> Tensor:
        found = []
        for place, own in enumerate(each):
            value = one.evidence(own, x, y[:, place]).value
            value.backward()
            found.append(value.detach())
        return torch.stack(found).sum()

    return {
        "together": with_gradient(lambda: objective.evidence(model, x, y).value),
        "GPyTorch": with_gradient(peer.evidence),
        "one target at a time": apart,
    }


def memory(rows: int, targets: int, device: str, threads: int, name: str) -> float:
    """MiB that one evaluation adds; runs in its own process."""
    torch.set_num_threads(threads)
    runs(20, 2, device)[name]()
    return added_mib(runs(rows, targets, device)[name], device)


def searched(model: IndependentGP, x: Tensor, y: Tensor, name: str) -> int:
    """Train a model in place; returns the evaluations, counted once for each target."""
    count = 0

    def minimise(module: nn.Module, loss: Callable[[], Tensor]) -> int:
        made = 0

        def counted(number: int, value: float, replayed: bool) -> None:
            nonlocal made
            made = number

        LBFGSB().minimise(list(module.parameters()), loss, EVALUATIONS, counted)
        return made

    if name == "each by itself":
        problem = SeparateProblem(model, x, y)
        searches = problem.searches()
        for _ in range(EVALUATIONS):
            count += len(searches.active())
            problem.advance(searches)
    elif name == "summed":
        objective = IndependentMLL()
        made = minimise(model, lambda: -objective.evidence(model, x, y).value / len(x))
        count = made * y.shape[1]
    else:
        one, noise = ExactMLL(), []
        for place, own in enumerate(alone(model)):
            column = y[:, place]
            count += minimise(own, lambda: -one.evidence(own, x, column).value / len(x))  # noqa: B023
            model.parts[place].load_state_dict(
                {k: v for k, v in own.state_dict().items() if not k.startswith("likelihood")}
            )
            noise.append(own.likelihood.noise_variance.detach())
        model.likelihood.noise_variance = torch.stack(noise)
    return count


def search_table(rows: int, targets: int, device: str) -> list[dict[str, object]]:
    """Seconds and evaluations of training, and the evidence that it lacks to the best way."""
    found, evidences = [], []
    for name in ("each by itself", "summed", "one target at a time"):
        model, x, y = problem(rows, targets, device)
        began = time.process_time() if device == "cpu" else time.perf_counter()
        count = searched(model, x, y, name)
        ended = time.process_time() if device == "cpu" else time.perf_counter()
        parts = model.stacked()
        values = parts.read().detach()
        reached = target_evidences(
            parts, model.cells(x, y), range(targets), values, gradient=False
        ).total()
        evidences.append(reached.cpu())
        found.append({"rows": rows, "targets": targets, "way": name, "seconds": ended - began})
        found[-1]["evaluations a target"] = count / targets
    best = torch.stack(evidences).max(0).values
    for row, reached in zip(found, evidences, strict=True):
        row["over each by itself"] = row["seconds"] / found[0]["seconds"]
        row["lost"] = float((best - reached).sum())
        row["most lost"] = float((best - reached).max())
    return found


def sizes_of(text: str) -> tuple[int, int]:
    """Rows and targets of "100x20"."""
    rows, targets = text.split("x")
    return int(rows), int(targets)


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=5)
    default = ["25x200", "50x100", "100x100", "200x50", "500x16", "1000x8"]
    parser.add_argument("--sizes", type=sizes_of, nargs="*", default=[*map(sizes_of, default)])
    default = ["50x50", "100x50", "200x20"]
    parser.add_argument("--searches", type=sizes_of, nargs="*", default=[*map(sizes_of, default)])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    where = f"{options.device}, {options.threads} threads"
    table: list[dict[str, object]] = []
    for rows, targets in options.sizes:
        work = runs(rows, targets, options.device)
        values = {name: float(run()) for name, run in work.items()}
        for value in values.values():
            assert math.isclose(value, values["together"], rel_tol=TOLERANCE), values
        for name, seconds in fair_in_turns(work, options.repeats, options.device).items():
            size = rows, targets, options.device, options.threads
            table.append(
                {
                    "rows": rows,
                    "targets": targets,
                    "way": name,
                    "seconds": seconds,
                    "MiB": in_own_process(memory, *size, name),
                }
            )
        for row in table[-len(work) :]:
            row["over together"] = float(row["seconds"]) / float(table[-len(work)]["seconds"])  # type: ignore[arg-type]
    if table:
        show(table, f"evidence and gradient, {where}")
    table = [row for size in options.searches for row in search_table(*size, options.device)]
    if table:
        show(table, f"training, {where}")


if __name__ == "__main__":
    main()
