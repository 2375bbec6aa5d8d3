"""Time of predictions, further rows and joint draws of an exact GP, against GPyTorch.

    python scripts/bench_predict.py --threads 1

Models are conditioned once, and caches are filled by a first call outside of the times. GPyTorch
works by Cholesky factors as gpx does; ``fast_pred_var`` keeps a factor for variances. GPyTorch
draws by a factor of the joint covariance at the test points, as gpx does with ``jointly``; other
draws of gpx are functions (prior waves and an update of the data), which can be kept and evaluated
elsewhere. Calls alternate in one process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import gpytorch
import torch
from peers import Regression, by_cholesky, rbf
from tables import show
from timing import command_line, fair_in_turns
from torch import Tensor

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import ExactGP
from gpx.runs.function_draws import drawn_functions
from gpx.training.allocator import keep_freed_memory

INPUTS, LENGTHSCALE, NOISE = 3, 0.7, 0.01
POINTS, DRAWS = 200, 64

Work = Callable[[], Any]


def problem(rows: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, y, one further row of each, and the test points; float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows + 1 + POINTS, INPUTS, generator=generator, dtype=torch.float64)
    y = torch.sin(5.0 * x[:, 0]) + 0.1 * torch.randn(len(x), generator=generator).double()
    x, y = x.to(device), y.to(device)
    return x[:rows], y[:rows], x[rows : rows + 1], y[rows : rows + 1], x[rows + 1 :]


class Peer:
    """GPyTorch's model in its prediction mode, its calls within given settings."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.model = Regression(x, y, rbf(INPUTS, LENGTHSCALE), NOISE).eval()

    @torch.no_grad()
    def predict(self, at: Tensor, setting: Callable[[], Any] = nullcontext) -> tuple[Tensor, ...]:
        """Mean and variance of the function."""
        with by_cholesky(), setting():
            law = self.model(at)
            return law.mean, law.variance

    @torch.no_grad()
    def updated(self, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        """Means after a further row."""
        with by_cholesky():
            return self.model.get_fantasy_model(x, y)(at).mean

    @torch.no_grad()
    def draws(self, at: Tensor) -> Tensor:
        """Joint draws."""
        with by_cholesky():
            return self.model(at).rsample(torch.Size([DRAWS]))


def work_of(rows: int, device: str) -> tuple[dict[str, dict[str, Work]], dict[str, float]]:
    """Task -> who -> function; largest errors of variances relative to those of gpx."""
    x, y, more_x, more_y, at = problem(rows, device)
    model = ExactGP(
        kernel=RBF(INPUTS, LENGTHSCALE), mean=Constant(), likelihood=Gaussian(NOISE)
    ).to(x)
    posterior = model.condition(x, y)
    exact, fast = Peer(x, y), Peer(x, y)
    love = gpytorch.settings.fast_pred_var
    generator = torch.Generator(device).manual_seed(0)
    kept = posterior.sample_paths(DRAWS, generator=generator)

    mean, variance = posterior.predict(at)
    errors = {}
    for name, (their_mean, theirs) in {
        "GPyTorch": exact.predict(at),
        "GPyTorch, fast_pred_var": fast.predict(at, love),
    }.items():
        torch.testing.assert_close(their_mean, mean, rtol=1e-6, atol=1e-6)
        errors[name] = float(((theirs - variance) / variance).abs().max())
    assert errors["GPyTorch"] < 1e-4, errors
    further = posterior.with_observations(more_x, more_y, model.likelihood)
    torch.testing.assert_close(
        exact.updated(more_x, more_y, at), further.predict(at).mean, rtol=1e-6, atol=1e-6
    )

    return {
        f"mean and variance at {POINTS} points": {
            "gpx": lambda: posterior.predict(at),
            "GPyTorch": lambda: exact.predict(at),
            "GPyTorch, fast_pred_var": lambda: fast.predict(at, love),
        },
        f"a further row, then means at {POINTS} points": {
            "gpx": lambda: posterior.with_observations(more_x, more_y, model.likelihood).predict(
                at
            ),
            "GPyTorch": lambda: exact.updated(more_x, more_y, at),
        },
        f"{DRAWS} joint draws at {POINTS} points": {
            "gpx": lambda: posterior.sample_paths(DRAWS, generator=generator)(at),
            "gpx, functions drawn before": lambda: kept(at),
            "gpx, jointly at these points": lambda: drawn_functions(
                posterior, at, DRAWS, seed=0, jointly=True
            ),
            "GPyTorch": lambda: exact.draws(at),
        },
    }, errors


def main() -> None:
    parser = command_line(__doc__, threads=1, repeats=7)
    parser.add_argument("--rows", type=int, nargs="+", default=[200, 1000, 5000])
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a run does
    table = []
    for rows in options.rows:
        tasks, errors = work_of(rows, options.device)
        for task, work in tasks.items():
            found = fair_in_turns(work, options.repeats, options.device)
            for name, seconds in found.items():
                table.append(
                    {
                        "rows": rows,
                        "task": task,
                        "by": name,
                        "ms": 1e3 * seconds,
                        "over gpx": seconds / found["gpx"],
                        "variance, largest relative difference": errors.get(name)
                        if "variance" in task
                        else None,
                    }
                )
    show(table, f"float64, {options.device}, {options.threads} threads, {options.repeats} turns")


if __name__ == "__main__":
    main()
