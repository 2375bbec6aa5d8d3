"""Type-I inference in one dimension: sampled kernels of ten basis functions.

    python experiments/reweighted/demo.py
    python experiments/reweighted/demo.py --quick      # a short chain, nothing written

Setting (Evans thesis, figure 5.2; kernel, range and noise are not printed and chosen here): 50
points on [0, 1] from a Gaussian process of squared exponential covariance with lengthscale 0.1 and
noise of standard deviation 0.1, 10 GRIEF functions of that kernel, one prior variance each, MALA
with 1000 steps of burn-in, then 10,000, every 50th kept. The hyper-prior of the figure is not
printed either: log-normal with mode 1, and variance 100 as in the benchmarks of the source or 1.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib

matplotlib.use("Agg")
from functools import partial

import matplotlib.pyplot as plt
import torch
from record import argument_parser, write

from gpx.bases import GridFeatures, GridOptions
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import Reweighted, WeightPriors
from gpx.training import MALA

HERE = Path(__file__).resolve().parent
LENGTHSCALE, NOISE, ORIGIN = 0.1, 0.1, 0.5
LAGS = [0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """50 noisy points of one draw from the process."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(50, 1, generator=generator).sort(0).values
    covariance = RBF(1, lengthscale=LENGTHSCALE).evaluate(x, x).detach()
    noisy = covariance + NOISE**2 * torch.eye(50)
    return x, torch.linalg.cholesky(noisy) @ torch.randn(50, generator=generator)


def sampled(
    x: torch.Tensor, y: torch.Tensor, variance: float, burn_in: int, iterations: int
) -> tuple[Reweighted, MALA]:
    """Model and chain after its last step."""
    model = Reweighted(
        kernel=RBF(1, lengthscale=LENGTHSCALE),
        mean=Zero(),
        likelihood=Gaussian(NOISE**2),
        basis=partial(
            GridFeatures,
            num_inputs=1,
            grid=GridOptions(points_per_dim=10, margin=0.0),
            noise_first=False,
        ),
        num_basis=10,
        priors=WeightPriors(weight_variance=variance),
    )
    model.initialise(x, y, generator=torch.Generator())
    chain = MALA(burn_in=burn_in, iterations=iterations, thin=50)
    chain.bind(model, x, 0)
    generator = torch.Generator().manual_seed(1)
    for step in range(chain.max_steps(10**6)):
        chain.step(step, x, y, generator=generator)
    return model, chain


@torch.no_grad()
def kernels(model: Reweighted, at: torch.Tensor) -> torch.Tensor:
    """k(ORIGIN, at) under every sample: (T, len(at))."""
    origin = model.basis(torch.tensor([[ORIGIN]]))
    return (model.samples[:, :-1].exp() * origin) @ model.basis(at).mT


def band(found: torch.Tensor, shape: torch.Tensor) -> list[dict[str, float]]:
    """Quantiles over samples of kernels and correlations at LAGS, (T, lags) each."""
    rows = []
    for i, lag in enumerate(LAGS):
        row = {"lag": lag, "exact": math.exp(-0.5 * (lag / LENGTHSCALE) ** 2)}
        for name, values in (("k", found[:, i]), ("correlation", shape[:, i])):
            for q in (5, 50, 95):
                row[f"{name} {q} %"] = float(values.quantile(q / 100))
        rows.append(row)
    return rows


def picture(model: Reweighted, x: torch.Tensor, y: torch.Tensor) -> None:
    """Data and predictions, functions, kernels."""
    line = torch.linspace(0.0, 1.0, 301)[:, None]
    posterior = model.condition(x, y)
    law = posterior.predictive(line, model.likelihood)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    mean, spread = law.mean, law.stddev
    left.fill_between(line[:, 0], mean - 2 * spread, mean + 2 * spread, alpha=0.25, lw=0)
    left.plot(line[:, 0], mean)
    left.plot(x[:, 0], y, "k.", ms=4)
    left.set(title="mixture over samples, two standard deviations", xlabel="x", ylabel="y")
    with torch.no_grad():
        middle.plot(line[:, 0], model.basis(line))
    middle.set(title="10 basis functions", xlabel="x")
    shown = kernels(model, line)[:: max(1, len(model.samples) // 40)]
    right.plot(line[:, 0], shown.mT, color="tab:blue", lw=0.5, alpha=0.5)
    exact = RBF(1, lengthscale=LENGTHSCALE).evaluate(torch.tensor([[ORIGIN]]), line).detach()[0]
    right.plot(line[:, 0], exact, "k", lw=2, label="the kernel of the data")
    right.set(title=f"{len(shown)} sampled kernels k({ORIGIN}, x)", xlabel="x")
    right.legend()
    figure.savefig(HERE / "demo.png", dpi=110)


def main() -> None:
    options = argument_parser(__doc__, quick="a chain of 300 + 1500 steps").parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    burn_in, iterations = (300, 1500) if options.quick else (1000, 10_000)
    x, y = data()
    rows, notes, models, checks = {}, [], {}, {}
    for variance in (100.0, 1.0):
        began = time.process_time()
        model, chain = sampled(x, y, variance, burn_in, iterations)
        seconds = time.process_time() - began
        facts = chain.final_evidence(x, y, generator=torch.Generator()).facts
        models[variance] = model
        found = kernels(model, ORIGIN + torch.tensor(LAGS)[:, None])
        shape = found / found[:, :1]
        table = band(found, shape)
        rows[f"Hyper-prior of variance {variance:g}"] = table
        lengths = LENGTHSCALE / (-2.0 * shape[:, LAGS.index(LENGTHSCALE)].log()).sqrt()
        notes.append(
            f"Hyper-prior of variance {variance:g}: {facts['num_samples']} samples from a chain of "
            f"{burn_in} + {iterations} steps, acceptance {facts['acceptance']:.2f}, "
            f"{facts['effective_samples_noise']:.0f} effective samples of the noise, at least "
            f"{facts['effective_samples_least']:.0f} of every weight's variance; {seconds:.0f} s "
            f"of processor time. Noise variance {float(model.samples[:, -1].exp().mean()):.4f} (of "
            f"the data {NOISE**2:.4f}). Lengthscales inferred from the correlation at lag "
            f"{LENGTHSCALE}: from {float(lengths.nanquantile(0.05)):.3f} to "
            f"{float(lengths.nanquantile(0.95)):.3f} (5 % and 95 % quantiles)."
        )
        for what in ("k", "correlation"):
            inside = all(
                row[f"{what} 5 %"] - 1e-9 <= row["exact"] <= row[f"{what} 95 %"] + 1e-9
                for row in table
                if row["lag"] <= LENGTHSCALE
            )
            name = {"k": "covariance", "correlation": "correlation"}[what]
            checks[
                f"variance {variance:g}: the {name} of the true kernel is inside the 5 % to 95 % "
                "band at lags up to its lengthscale"
            ] = inside
    if not options.quick:
        picture(models[1.0], x, y)
    notes.append(
        f"Tables: quantiles of sampled kernels k({ORIGIN}, {ORIGIN} + lag), and of their "
        "correlations (divided by k at lag 0). Why the checks of the covariance fail: one draw of "
        "a function says little about the scale of its kernel. The prior means of the scale are "
        "6.4 and 1.6, and the sampled covariances are too large under both hyper-priors; the "
        "correlations are not."
    )
    checks["at least 20 kernel samples are plotted"] = len(models[1.0].samples) >= 20
    title = "One dimension: sampled kernels of ten basis functions"
    folder = None if options.quick else HERE
    write(folder, "demo", title, notes, rows, checks, pictures=["demo.png"])


if __name__ == "__main__":
    main()
