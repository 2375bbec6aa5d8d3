"""Step time and working memory of QSGP against the number of basis functions and of data rows.

    python scripts/bench_qsgp.py --threads 1
    python scripts/bench_qsgp.py --device cuda
    python scripts/bench_qsgp.py --likelihood bernoulli --inputs 784 --rows 100 --columns 2000

Each row is one model: sparse AdaGrad steps of the quadruply stochastic bound in float32, without
a warm start, or of the site bound with its snapshot (one pass over rows x functions before the
first step, so use few rows). Configurations alternate within every round, so that other load slows
all of them alike; the table gives medians and minima over rounds. The limit of a step is the time
of its cosines, sines and multiply-adds at the rates of torch's own functions on data in the cache,
which are measured in every round too. Operations are counted in a step that uses torch operations;
the compiled pass over features uses cheaper cosines and may be faster than the limit. ``CC=false``
times torch operations (without a compiler). Memory of a step is without the state (weights and
AdaGrad accumulators, O(m)) and the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tables import show
from timing import Spent, Work, command_line, in_turns, least, middle, tensors_mib
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.bases.fourier import native as fourier_native
from gpx.bases.fourier.native import fourier_pass
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Zero
from gpx.models import QSGP
from gpx.objectives import QuadruplyStochasticELBO, SiteBoundELBO
from gpx.training.allocator import keep_freed_memory

BATCH = 500


@dataclass
class Case:
    """One configuration with its model and optimiser."""

    num_basis: int
    num_data: int
    device: torch.device
    columns: int
    num_dense: int
    num_inputs: int = 8
    likelihood: str = "gaussian"
    learn: bool = False

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(0)
        shape = self.num_data, self.num_inputs
        self.x = torch.randn(shape, generator=generator, device=self.device)
        self.y = torch.sin(self.x.sum(1))
        sites = self.likelihood == "bernoulli"
        if sites:
            self.y = self.y.sign()
        kernel = RBF(ard_num_dims=self.num_inputs, lengthscale=0.7 * self.num_inputs**0.5)
        self.model = QSGP(
            kernel=kernel,
            mean=Zero(),
            likelihood=Bernoulli() if sites else Gaussian(0.01),
            num_basis=self.num_basis,
            covariance="chevron" if self.num_dense else "mean_field",
            num_dense=self.num_dense,
            diagonal="free",
            warm_start=False,
        ).to(self.device)
        self.objective: QuadruplyStochasticELBO | SiteBoundELBO
        if sites:
            self.objective = SiteBoundELBO(self.num_data, self.columns).to(self.device)
        else:
            self.objective = QuadruplyStochasticELBO(
                self.num_data, columns=self.columns, drift_interval=0
            )
        self.objective.prepare(self.model, self.x, self.y, generator=generator)
        groups = self.model.parameter_groups()
        for parameter in groups["hyperparameters"]:  # frozen, as at the start of a run
            parameter.requires_grad_(self.learn)
        self.optimiser = torch.optim.Adagrad(groups["variational"], lr=1e-3)
        self.generator = generator

    def step(self) -> None:
        """One training step."""
        rows = torch.randint(self.num_data, (BATCH,), generator=self.generator, device=self.device)
        self.optimiser.zero_grad(set_to_none=True)
        self.objective.before_step(self.model, self.x, self.y, rows)
        loss = self.objective(self.model, self.x[rows], self.y[rows], generator=self.generator)
        loss.backward()
        with torch.sparse.check_sparse_tensor_invariants(False):
            self.optimiser.step()
        self.objective.after_step(self.model)


class Operations(TorchDispatchMode):
    """Counts trigonometric functions and multiply-adds of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.trigonometric = 0
        self.multiply_adds = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run ``func`` and count its operations."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("cos", "cos_", "sin", "sin_"):
            self.trigonometric += result.numel()
        elif name in ("mm", "bmm", "addmm", "addmm_", "mv"):
            left = args[1] if name.startswith("addmm") else args[0]
            self.multiply_adds += result.numel() * left.shape[-1]
        return result


class Rates:
    """Measures rates of trigonometric functions and multiply-adds, which give the limit."""

    def __init__(self, device: torch.device) -> None:
        self.angles = torch.randn(2500, 500, device=device)
        self.values = torch.empty_like(self.angles)
        self.square = torch.randn(1536, 1536, device=device)

    def work(self) -> dict[str, Work]:
        """Functions to be timed alternately with the steps."""

        def trigonometry() -> None:
            torch.cos(self.angles, out=self.values)
            torch.sin(self.angles, out=self.values)

        return {"trigonometry": trigonometry, "product": lambda: self.square @ self.square}

    def limit(self, counted: Operations, times: dict[str, list[Spent]]) -> Spent:
        """Wall-clock and processor seconds of the counted operations at the median rates."""
        angles = counted.trigonometric / (2 * self.angles.numel())
        products = counted.multiply_adds / 1536**3
        pairs = zip(middle(times["trigonometry"]), middle(times["product"]), strict=True)
        return Spent(*(angles * a + products * b for a, b in pairs))


def main() -> None:
    parser = command_line(__doc__, threads=1)
    parser.add_argument("--basis", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**6])
    parser.add_argument("--inputs", type=int, default=8, help="input dimension d")
    parser.add_argument("--likelihood", choices=("gaussian", "bernoulli"), default="gaussian")
    parser.add_argument("--columns", type=int, default=5000, help="basis functions per list")
    parser.add_argument("--learn", action="store_true", help="gradients of hyperparameters as well")
    parser.add_argument("--dense", type=int, default=0, help="dense columns of the covariance")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, default=None, help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    device = torch.device(options.device)
    first_rows, *more_rows = options.rows
    wanted = [(m, first_rows) for m in options.basis]
    wanted += [(options.basis[min(1, len(options.basis) - 1)], n) for n in more_rows]
    cases = [
        Case(
            *(m, n, device, options.columns, options.dense, options.inputs, options.likelihood),
            learn=options.learn,
        )
        for m, n in wanted
    ]
    for case in cases:
        case.step()
    memory = [tensors_mib(case.step, options.device) for case in cases]
    without_compiler = mock.patch.object(fourier_native, "_checked", return_value=None)
    with without_compiler, Operations() as counted:
        cases[0].step()
    rates = Rates(device)
    steps: dict[str, Work] = {f"{i}": case.step for i, case in enumerate(cases)}
    times = in_turns(rates.work() | steps, options.rounds, options.device)
    limit = rates.limit(counted, times)
    rows: list[dict[str, Any]] = []
    for (name, case), mib in zip(zip(steps, cases, strict=True), memory, strict=True):
        wall, processor = middle(times[name])
        rows.append(
            {
                "m": case.num_basis,
                "n": case.num_data,
                "wall, ms": 1e3 * wall,
                "least, ms": 1e3 * least(times[name]).wall,
                "processor, ms": 1e3 * processor,
                "step MiB": mib,
                "time / limit": wall / limit.wall,
                "processor / limit": processor / limit.processor,
            }
        )
    compiled = fourier_pass(torch.zeros(1, device=device)) is not None
    show(
        rows,
        f"{device}, {options.threads} threads, float32, features "
        f"{'compiled' if compiled else 'by torch operations'}, batch {BATCH}, support rows 500, "
        f"{options.columns} columns per list, {options.dense} dense columns, d = {options.inputs}, "
        f"{options.likelihood} likelihood, hyperparameters "
        f"{'learned' if options.learn else 'frozen'}; limit {1e3 * limit.wall:.1f} ms wall, "
        f"{1e3 * limit.processor:.1f} ms processor: {counted.trigonometric:.3g} cosines and sines, "
        f"{counted.multiply_adds:.3g} multiply-adds",
    )
    flat = []
    for over, group in (
        ("m", [row for row in rows if row["n"] == first_rows]),
        ("n", [row for row in rows if row["m"] == wanted[-1][0]]),
    ):
        flat.append({"largest / smallest over": over})
        for key in ("wall, ms", "least, ms", "processor, ms", "step MiB"):
            values = [row[key] for row in group]
            flat[-1][key] = max(values) / min(values)
    show(flat)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
