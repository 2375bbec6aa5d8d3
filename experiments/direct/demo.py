"""One dimension, three families of q (fig. 7.4): mean field, bounded and sampled mixtures.

    python experiments/direct/demo.py
    python experiments/direct/demo.py --quick

Problem (Evans thesis, section 7.5.2; ranges, noise and lengthscale are ours, the source gives
none): 20 inputs uniform on (-1, 1), cos(2 pi x) exp(-x^2) with noise of standard deviation 0.03;
100 random Fourier features of lengthscale 0.3, weights of 15 values from -1 to 1 and noise
variances of 15 values from 1e-5 to 1e-2, uniform priors. (a) mean field by L-BFGS; (b) a mixture
of five by L-BFGS on the bound of its entropy; (c) the same by Adam with 100 draws of the entropy's
gradient a step, 2000 steps, the rate from 0.05 to 0.0005. Mixtures start at perturbations of (a),
by standard normal numbers on the logits. Five such problems, of which the first is drawn.

Then the settings of the released code of the same author (github.com/treforevans/direct, its
tutorial): 20 inputs from 0 to 1 in equal steps, uniform noise of +-0.05, lengthscale 0.1, functions
divided by the root of the number of frequencies, mixtures that start at the prior with normal
numbers of deviation 0.01 on the logits, 10,000 steps of Adam at 0.001; what is outside is 1.2 to 2.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from matplotlib.figure import Figure
from record import write
from torch import Tensor

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.direct.entropy import log_density
from gpx.methods.direct.mean_field import drawn_codes
from gpx.models import Direct, DirectMixture, DirectPosterior, NoiseGrid, WeightGrid
from gpx.objectives import DirectELBO, DirectMixtureELBO, DirectSampledELBO, Objective
from gpx.training import LBFGSB

HERE = Path(__file__).resolve().parent
FUNCTIONS = 100
COMPONENTS = 5
NAMES = ("(a) mean field, L-BFGS", "(b) bounded mixture", "(c) sampled mixture")


def truth(x: Tensor) -> Tensor:
    """The function (n,) at x (n, 1)."""
    return (2.0 * math.pi * x[:, 0]).cos() * (-x[:, 0].square()).exp()


def data(n: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (n, 1) and targets (n,)."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=draws, dtype=torch.float64) * 2.0 - 1.0
    return x, truth(x) + 0.03 * torch.randn(n, generator=draws, dtype=torch.float64)


def released_data(seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (20, 1) and targets (20,) of the released code's settings."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.linspace(0.0, 1.0, 20, dtype=torch.float64).unsqueeze(1)
    return x, truth(x) + 0.1 * (torch.rand(20, generator=draws, dtype=torch.float64) - 0.5)


def made(cls: type[Any], x: Tensor, y: Tensor, released: bool = False, **options: Any) -> Any:
    """A model at its prior. The outputscale m / 2 makes the functions plain sines and cosines."""
    scales = (
        {"lengthscale": 0.1} if released else {"lengthscale": 0.3, "outputscale": 0.5 * FUNCTIONS}
    )
    model = cls(
        kernel=RBF(1, **scales),
        mean=Zero(),
        likelihood=Gaussian(0.03**2),
        basis=RandomFourier,
        num_basis=FUNCTIONS,
        weights=WeightGrid(values=torch.linspace(-1.0, 1.0, 15).tolist(), prior="uniform"),
        noise=NoiseGrid(lowest=1e-5, highest=1e-2),
        anneal=0,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


def parameters(model: Any) -> list[torch.nn.Parameter]:
    return [p for group in model.parameter_groups().values() for p in group]


def by_search(model: Any, objective: Objective[Any], x: Tensor, y: Tensor, most: int) -> int:
    """L-BFGS, again after every round of the model; evaluations."""
    counts: list[float] = []
    for _ in range(model.num_rounds):
        LBFGSB().minimise(
            parameters(model),
            lambda: objective(model, x, y),
            most,
            lambda count, loss, replayed: counts.append(loss),
        )
        if not model.next_round(x, y, 0.0, generator=torch.Generator()):
            break
    return len(counts)


def by_sampling(
    model: Any, x: Tensor, y: Tensor, draws: int, steps: int, rate: float, fall: float
) -> int:
    """Adam on the sampled bound, its rate falling by ``fall`` in all; steps."""
    objective = DirectSampledELBO(len(x), draws)
    optimiser = torch.optim.Adam(parameters(model), lr=rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, fall ** (1.0 / steps))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimiser.zero_grad()
        objective(model, x, y, generator=generator).backward()
        optimiser.step()
        schedule.step()
    return steps


@torch.no_grad()
def true_bound(model: Any, num: int) -> tuple[float, float]:
    """The evidence lower bound of q itself and its standard error: the entropy by ``num`` draws."""
    if isinstance(model, Direct):
        return model.bound_value(), 0.0
    log_shares, log_q = model.log_shares(), model.log_q()
    generator = torch.Generator().manual_seed(2)
    logs = []
    for _ in range(max(1, num // 1000)):
        codes = drawn_codes(log_shares.exp(), log_q.exp(), 1000, generator)
        logs.append(log_density(log_shares, log_q, codes))
    entropy = -torch.cat(logs)
    exact = float(torch.stack(list(model.exact_terms().values())).sum())
    return exact + float(entropy.mean()), float(entropy.std() / math.sqrt(len(entropy)))


def families(
    x: Tensor, y: Tensor, most: int, steps: int, num: int, grid: Tensor
) -> list[tuple[dict[str, Any], DirectPosterior]]:
    """A row and the posterior of each of the three."""
    away = (grid[:, 0].abs() > 1.5) & (grid[:, 0].abs() < 2.0)
    inside = grid[:, 0].abs() < 1.0
    mean_field = made(Direct, x, y)
    found = []
    for name in NAMES:
        began = time.process_time()
        if name.startswith("(a)"):
            model, count = mean_field, by_search(mean_field, DirectELBO(), x, y, most)
        else:
            model = made(DirectMixture, x, y, components=COMPONENTS, perturbation=1.0)
            start = torch.Generator().manual_seed(0)
            model.start_around(mean_field.logits.detach(), generator=start)
            model.noise_logits.data = mean_field.noise_logits.detach().clone()
            if name.startswith("(b)"):
                count = by_search(model, DirectMixtureELBO(), x, y, most)
            else:
                count = by_sampling(model, x, y, 100, steps, 0.05, 0.01)
        seconds = time.process_time() - began
        found.append(judged(name, count, seconds, model, (x, y), num, grid, inside, away))
    return found


def released_families(
    x: Tensor, y: Tensor, most: int, steps: int, num: int
) -> list[tuple[dict[str, Any], DirectPosterior]]:
    """As ``families``, in the released code's settings."""
    grid = torch.linspace(0.0, 2.0, 401).double().unsqueeze(1)
    inside, away = grid[:, 0] < 1.0, grid[:, 0] > 1.2
    found = []
    for name in NAMES:
        began = time.process_time()
        if name.startswith("(a)"):
            model = made(Direct, x, y, released=True, restarts=0)
            count = by_search(model, DirectELBO(), x, y, most)
        else:
            model = made(DirectMixture, x, y, released=True, components=COMPONENTS, sweeps=0)
            model.perturbation = 0.01
            prior = model.log_prior().expand(model.logits.shape[1:]).contiguous()
            model.start_around(prior, generator=torch.Generator().manual_seed(0))
            if name.startswith("(b)"):
                count = by_search(model, DirectMixtureELBO(), x, y, most)
            else:
                count = by_sampling(model, x, y, 100, steps, 0.001, 1.0)
        seconds = time.process_time() - began
        found.append(judged(name, count, seconds, model, (x, y), num, grid, inside, away))
    return found


def judged(
    name: str,
    count: int,
    seconds: float,
    model: Any,
    rows: tuple[Tensor, Tensor],
    num: int,
    grid: Tensor,
    inside: Tensor,
    away: Tensor,
) -> tuple[dict[str, Any], DirectPosterior]:
    """Row and posterior of a trained model."""
    bound, error = true_bound(model, num)
    posterior = model.condition(*rows)
    moments = posterior.predict(grid)
    deviation, off = moments.variance.sqrt(), moments.mean - truth(grid)
    row = {
        "family": name,
        "steps": count,
        "seconds": seconds,
        "true bound": bound,
        "standard error": error,
        "deviation inside": float(deviation[inside].mean()),
        "deviation outside": float(deviation[away].mean()),
        "RMSE inside": float(off[inside].square().mean().sqrt()),
        "RMSE outside": float(off[away].square().mean().sqrt()),
        "zeros, %": 100.0 * posterior.sparsity(),
    }
    return row, posterior


def draw(
    axes: Any, name: str, posterior: DirectPosterior, x: Tensor, y: Tensor, grid: Tensor
) -> None:
    """A panel: mean, 95 % band, five functions and the data."""
    moments = posterior.predict(grid)
    paths = posterior.sample_paths(5, generator=torch.Generator().manual_seed(3))
    low, high = (moments.mean + side * 1.96 * moments.variance.sqrt() for side in (-1.0, 1.0))
    at = grid[:, 0]
    axes.fill_between(at, low, high, color="#9dc3e6", label="95 %")
    axes.plot(at, paths(grid).mT, color="#888888", linewidth=0.6)
    axes.plot(at, moments.mean, color="#1f4e79", label="mean")
    axes.plot(at, truth(grid), color="#222222", linestyle=":", label="truth")
    axes.plot(x[:, 0], y, ".", color="#c00000")
    axes.set(title=name, ylim=(-3.0, 3.0))


def mean_row(same: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over problems; the standard error is that of the mean of the bounds."""
    row: dict[str, Any] = {"family": same[0]["family"]}
    for key in list(same[0])[1:]:
        row[key] = sum(each[key] for each in same) / len(same)
    squares = sum(each["standard error"] ** 2 for each in same)
    return row | {"standard error": math.sqrt(squares) / len(same)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and draws")
    options = parser.parse_args()
    torch.set_num_threads(1)
    most, steps, num = (100, 50, 2000) if options.quick else (1000, 2000, 100_000)
    grid = torch.linspace(-2.0, 2.0, 401).double().unsqueeze(1)
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    problems = []
    for seed in range(1 if options.quick else 5):
        x, y = data(seed=seed)
        found = families(x, y, most, steps, num, grid)
        problems.append([row for row, _ in found])
        print(problems[-1], flush=True)
        for (row, posterior), axes in zip(found, panels, strict=True):
            if not seed:
                draw(axes, row["family"], posterior, x, y, grid)
    panels[0].legend(loc="upper left")
    figure.savefig(HERE / "demo.png", dpi=110)
    rows = [mean_row(list(same)) for same in zip(*problems, strict=True)]
    again = []
    for seed in range(1 if options.quick else 2):
        found = released_families(*released_data(seed), 3 * most, 5 * steps, num)
        again.append([row for row, _ in found])
        print(again[-1], flush=True)
    as_released = [mean_row(list(same)) for same in zip(*again, strict=True)]
    a, b, c = rows
    slack = [
        2.0 * math.hypot(p["standard error"], q["standard error"]) for p, q in ((b, a), (c, b))
    ]
    checks: dict[str, bool | None] = {
        "deviation on 1.5 < |x| < 2 of (b) is at least that of (a) (with a known noise it is, by "
        "enumeration; with the noise on a grid, as here, the mean field takes a larger noise "
        "variance, under which weights are wider)": (
            b["deviation outside"] >= a["deviation outside"]
        ),
        "deviation on 1.5 < |x| < 2 of (c) is at least that of (b)": (
            c["deviation outside"] >= b["deviation outside"]
        ),
        "true bound of (b) is at least that of (a), within two standard errors": (
            b["true bound"] >= a["true bound"] - slack[0]
        ),
        "true bound of (c) is at least that of (b), within two standard errors": (
            c["true bound"] >= b["true bound"] - slack[1]
        ),
        "released settings: the error of the mean outside falls from (a) to (b) to (c)": (
            as_released[0]["RMSE outside"]
            > as_released[1]["RMSE outside"]
            > as_released[2]["RMSE outside"]
        ),
        "released settings: the deviation outside rises from (a) to (b) to (c)": (
            as_released[0]["deviation outside"]
            <= as_released[1]["deviation outside"]
            <= as_released[2]["deviation outside"]
        ),
    }
    notes = [
        "Published: Evans thesis, figure 7.4, pictures without numbers; the claims are that the "
        "mean field (a) is too narrow away from the data, the bounded mixture (b) more reasonable "
        "and the sampled one (c) best.",
        "The pictures come out in the settings of the released code: the mean extrapolates better "
        "from (a) to (b) to (c). Not by a larger bound: (c) ends its 10,000 steps a hundred nats "
        "below (a), and it is the unfinished search that keeps it near the prior. Mixtures that "
        "have converged (upper table) end a nat above the mean field and beside it everywhere.",
        f"True bound: that of q itself, nats; exact but for the entropy of a mixture, which is the "
        f"mean of {num:,} draws. Means over {len(problems)} "
        "problems; seconds are of the processor, one thread.",
    ]
    title = "One dimension: mean field and mixtures"
    tables = {"Ranges and noise of ours": rows, "Settings of the released code": as_released}
    write(HERE, "demo", title, notes, tables, checks, pictures=["demo.png"])


if __name__ == "__main__":
    main()
