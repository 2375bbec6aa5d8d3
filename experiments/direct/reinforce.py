"""Exact against sampled gradients (figure 7.3), and the time of an evaluation over n.

    python experiments/direct/reinforce.py
    python experiments/direct/reinforce.py --quick

Problem (Evans thesis, section 7.5.1, which does not state the sizes): n inputs uniform on
(0, 1), b random Fourier features of a squared exponential of lengthscale 0.2, weights drawn from
{-1, 0, 1}, noise of standard deviation 0.1; uniform priors on these three values and on three noise
variances. REINFORCE follows the score function over the full batch with N draws a step, less the
mean reward of the other draws, by Adam. Both start at the prior.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from matplotlib.figure import Figure
from record import argument_parser, write
from torch import Tensor

from gpx.bases import RandomFourier
from gpx.bases.fixed_functions import sufficient_statistics
from gpx.constants import LOG_TWO_PI
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.direct.mean_field import total
from gpx.models import Direct, NoiseGrid, WeightGrid
from gpx.objectives import DirectELBO
from gpx.training import LBFGSB

HERE = Path(__file__).resolve().parent
VALUES = [-1.0, 0.0, 1.0]
VARIANCES = [0.001, 0.01, 0.1]
RATE = 0.05
FLOOR = 1e-2
"""Smallest distance in nats that the logarithmic picture shows."""

CALLS = 4
"""Evaluations of the bound per timing; few, so that some timings are undisturbed."""


class Draws(NamedTuple):
    """Places of the values of weights (N, b) and of the noise variance (N,)."""

    weights: Tensor
    noise: Tensor


class Trace(NamedTuple):
    """Bounds during a search, with steps and seconds.

    Attributes:
        label: of the search.
        steps, seconds, bounds: of the same length.
    """

    label: str
    steps: list[int]
    seconds: list[float]
    bounds: list[float]


def draw(log_q: Tensor, log_noise: Tensor, num: int, generator: torch.Generator) -> Draws:
    """N draws from q: log_q (b, k), log_noise (k_s,)."""
    weights = torch.multinomial(log_q.exp(), num, replacement=True, generator=generator).mT
    noise = torch.multinomial(log_noise.exp(), num, replacement=True, generator=generator)
    return Draws(weights, noise)


def score_gradient(
    model: Direct, features: Tensor, targets: Tensor, draws: Draws
) -> tuple[Tensor, Tensor]:
    """Unbiased gradient of the bound by the logits of weights (b, k) and noise (k_s,).

    Every draw's reward is log p(y, w, s) - log q(w, s), less the mean of the others'.

    Args:
        features (n, b), targets (n,): of the data.
        draws: from the model's q.

    Cost: N n b multiply-adds.
    """
    assert model.noise is not None
    log_q = model.logits.detach().log_softmax(-1)
    log_noise = model.noise_logits.detach().log_softmax(-1)
    weights = model.weights.values[draws.weights]
    variances = model.noise.values[draws.noise]
    error = (targets - weights @ features.mT).square().sum(1)
    reward = -0.5 * (error / variances + len(targets) * (variances.log() + LOG_TWO_PI))
    functions = torch.arange(len(log_q))
    log_ratio = model.weights.log_prior[draws.weights] - log_q[functions, draws.weights]
    reward = reward + log_ratio.sum(1) + (model.noise.log_prior - log_noise)[draws.noise]
    num = len(reward)
    if num > 1:
        reward = (reward - reward.mean()) * (num / (num - 1))
    of_weights = torch.nn.functional.one_hot(draws.weights, log_q.shape[1]) - log_q.exp()
    of_noise = torch.nn.functional.one_hot(draws.noise, len(log_noise)) - log_noise.exp()
    share = reward / num
    return torch.einsum("s,sbk->bk", share, of_weights), share @ of_noise


def problem(n: int, b: int, seed: int = 0) -> tuple[Direct, Tensor, Tensor]:
    """The model at its prior, inputs (n, 1) and targets (n,)."""
    generator = torch.Generator().manual_seed(seed)
    model = Direct(
        kernel=RBF(1, lengthscale=0.2),
        mean=Zero(),
        likelihood=Gaussian(0.01),
        basis=RandomFourier,
        num_basis=b,
        weights=WeightGrid(values=VALUES, prior="uniform"),
        noise=NoiseGrid(values=VARIANCES),
        anneal=0,  # both start at the prior
    ).double()
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    weights = model.weights.values[torch.randint(3, (b,), generator=generator)]
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return model, x, (model.basis(x) @ weights + 0.1 * noise).detach()


def by_gradient(n: int, b: int) -> tuple[dict[str, Any], Trace]:
    """The exact gradient, by L-BFGS; sums over the data are part of the time."""
    model, x, y = problem(n, b)
    began = time.process_time()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    trace = Trace("exact gradient, L-BFGS", [], [], [])

    def note(count: int, loss: float, replayed: bool) -> None:
        trace.steps.append(len(trace.steps) + 1)
        trace.seconds.append(time.process_time() - began)
        trace.bounds.append(-n * loss)

    objective = DirectELBO()
    LBFGSB().minimise(
        [model.logits, model.noise_logits],
        lambda: objective(model, x, y),
        1000,
        note,
    )
    seconds = time.process_time() - began
    row = {
        "n": n,
        "b": b,
        "method": trace.label,
        "draws": None,
        "steps": len(trace.steps),
        "bound": model.bound_value(),
        "best bound": model.bound_value(),
        "seconds": seconds,
    }
    return row, trace


def by_score(n: int, b: int, num: int, steps: int) -> tuple[dict[str, Any], Trace]:
    """REINFORCE with ``num`` draws a step; the exact bound is evaluated outside the timing."""
    model, x, y = problem(n, b)
    generator = torch.Generator().manual_seed(1)
    model.initialise(x, y, generator=generator)
    features = model.basis(x).detach()
    parameters = [model.logits, model.noise_logits]
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    seconds, trace = 0.0, Trace(f"REINFORCE, {num} draws a step", [], [], [])
    for step in range(steps):
        began = time.process_time()
        with torch.no_grad():
            here = [p.log_softmax(-1) for p in parameters]
            slopes = score_gradient(model, features, y, draw(here[0], here[1], num, generator))
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = -slope / n
        optimiser.step()
        seconds += time.process_time() - began
        if step % 10 == 9 or step == steps - 1:
            trace.steps.append(step + 1)
            trace.seconds.append(seconds)
            trace.bounds.append(model.bound_value())
    row = {
        "n": n,
        "b": b,
        "method": "REINFORCE, Adam",
        "draws": num,
        "steps": steps,
        "bound": trace.bounds[-1],
        "best bound": max(trace.bounds),
        "seconds": seconds,
    }
    return row, trace


def picture(columns: list[tuple[str, list[Trace]]]) -> Figure:
    """Nats below the largest bound found: over steps above, over seconds below."""
    figure = Figure(figsize=(4.2 * len(columns), 6.0), layout="constrained")
    panels = figure.subplots(2, len(columns), squeeze=False, sharey="row")
    for (title, traces), (upper, lower) in zip(columns, panels.T, strict=True):
        top = max(max(trace.bounds) for trace in traces)
        for trace in traces:
            below = [max(top - bound, FLOOR) for bound in trace.bounds]
            upper.plot(trace.steps, below, label=trace.label)
            lower.plot(trace.seconds, below)
        upper.set(title=title, xlabel="evaluations, or steps", xscale="log", yscale="log")
        lower.set(xlabel="processor seconds", xscale="log", yscale="log")
    for axes in panels[:, 0]:
        axes.set_ylabel("nats below the largest bound")
    panels[0, 0].legend(loc="lower left", fontsize="x-small")
    return figure


def evaluation_seconds(sizes: list[int], m: int, rounds: int) -> list[float]:
    """Best processor seconds of a bound with its gradient, interleaved over sizes of the data."""
    models = []
    for n in sizes:
        model, x, y = problem(1000, m)
        model.initialise(x, y, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(2)
        x = torch.rand(n, 1, generator=generator, dtype=torch.float64)
        model.statistics = sufficient_statistics(model.basis, x, torch.sin(6.0 * x[:, 0]))
        models.append(model)
    best = [float("inf")] * len(sizes)
    for _ in range(rounds):
        for place, model in enumerate(models):
            began = time.process_time()
            for _ in range(CALLS):
                total(model.mean_field_terms()).backward()
            best[place] = min(best[place], (time.process_time() - began) / CALLS)
    return best


def main() -> None:
    options = argument_parser(__doc__, quick="smaller sizes, fewer steps").parse_args()
    torch.set_num_threads(1)
    sizes = [(200, 20)] if options.quick else [(1000, 20), (10_000, 20), (1000, 100)]
    steps = 100 if options.quick else 1000
    rows, checks, columns = [], {}, []
    by_gradient(50, 4)  # loads code before timing
    for n, b in sizes:
        found = [by_gradient(n, b)]
        found += [by_score(n, b, num, steps) for num in ([1, 10] if n > 1000 else [1, 10, 100])]
        exact, *sampled = [row for row, _ in found]
        rows += [exact, *sampled]
        columns.append((f"n = {n:,}, b = {b}", [trace for _, trace in found]))
        best = max(sampled, key=lambda row: row["best bound"])
        checks[f"n={n}, b={b}: the exact gradient reaches at least REINFORCE's best bound"] = (
            exact["bound"] >= best["best bound"]
        )
        checks[f"n={n}, b={b}: the exact gradient takes at most a tenth of REINFORCE's time"] = (
            exact["seconds"] <= 0.1 * best["seconds"]
        )
    few, many = (1000, 20_000) if options.quick else (1000, 1_000_000)
    costs = []
    for m in (100, 300):
        small, large = evaluation_seconds([few, many], m, 5 if options.quick else 300)
        costs.append(
            {
                "m": m,
                f"ms at n = {few:,}": 1e3 * small,
                f"ms at n = {many:,}": 1e3 * large,
                "ratio": large / small,
            }
        )
        checks[
            f"m={m}: the time of an evaluation at n = 1,000 and n = {many:,} agrees within 10 %"
        ] = abs(large / small - 1.0) <= 0.1
    notes = [
        "Published: Evans thesis, figure 7.3, curves without numbers. The claim is that the exact "
        "gradient is much better, and the more so the larger n and b.",
        "Where REINFORCE's last bound is its best one, it was still rising when its steps ended.",
        f"REINFORCE: Adam at rate {RATE}, the bound evaluated every ten steps. Processor seconds "
        "of one thread, with the sums over the data; the time of an evaluation is the least of "
        "several interleaved timings.",
    ]
    if not options.quick:
        picture(columns).savefig(HERE / "reinforce.png", dpi=110)
    tables = {"Exact against sampled gradients": rows, "An evaluation with its gradient": costs}
    title = "Exact gradients against REINFORCE"
    folder = None if options.quick else HERE  # small sizes write no tables
    write(folder, "reinforce", title, notes, tables, checks, pictures=["reinforce.png"])


if __name__ == "__main__":
    main()
