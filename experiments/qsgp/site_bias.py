"""Bias of the stochastic bound for log-concave sites against the functions per step.

    python experiments/qsgp/site_bias.py            # m = 4000
    python experiments/qsgp/site_bias.py --quick    # m = 1000, nothing written: under a minute

The average of the sampled bound is below the exact one (Jensen) by an amount that the QSGP paper
calls small for logistic and Laplace sites and large for Gaussian ones, without numbers. Here the
exact bound, all rows and all m functions, is compared with averages of the estimate at several list
lengths, for the three ways of treating the latent deviation: ``affine`` and ``reparam``, which are
bounds, and ``paper``, which uses the variance instead. For ``affine`` also with the latent means of
a snapshot near the weights, as in training: mu = mu0 + 0.15 |mu0| / |eps| eps with a random
direction eps. Writes site_bias.json, site_bias.png and RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from functools import partial

import torch
from matplotlib.figure import Figure
from record import write
from torch import Tensor

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, Laplace, Likelihood
from gpx.means import Zero
from gpx.models import QSGP
from gpx.objectives import SiteBoundELBO, exact_site_elbo

HERE = Path(__file__).resolve().parent
N, INPUTS, BLOCK = 400, 4, 20
SITES = {"logistic": Bernoulli(), "Laplace 0.3": Laplace(0.3), "Gaussian 0.09": Gaussian(0.09)}


def problem(site: str, m: int) -> tuple[QSGP, Tensor, Tensor]:
    """A model at the optimum of its mean, inputs and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, INPUTS, generator=generator)
    f = 2.0 * torch.sin(2.0 * x[:, 0]) + x[:, 1] * x[:, 2]
    likelihood: Likelihood = SITES[site]
    if site == "logistic":
        y = torch.where(torch.rand(N, generator=generator) < torch.sigmoid(2.0 * f), 1.0, -1.0)
    else:
        y = f + 0.3 * torch.randn(N, generator=generator)
    model = QSGP(
        kernel=RBF(lengthscale=1.5, outputscale=4.0),
        mean=Zero(),
        likelihood=likelihood,
        num_basis=m,
        basis=partial(RandomFourier, block_frequencies=BLOCK // 2),
        warm_start_size=400,
        block_solves=0,
    )
    model.initialise(x, y, generator=generator)
    if isinstance(likelihood, Gaussian):  # exact optimum of the mean: one dense solve
        with torch.no_grad():
            phi = model.basis(x)
            system = phi @ phi.T + likelihood.noise_variance * torch.eye(N)
            model.family.mean.copy_((phi.T @ torch.linalg.solve(system, y)).view(-1, BLOCK))
    return model, x, y


@torch.no_grad()
def bias(model: QSGP, x: Tensor, y: Tensor, columns: int, bound: str, snapshot: bool) -> float:
    """Exact bound minus the mean estimate, nats per row, all rows in every estimate."""
    generator = torch.Generator().manual_seed(columns)
    objective = SiteBoundELBO(N, columns, bound=bound, eta=1.0, snapshot=snapshot)
    marginals = model.condition(x, y).predict(x)
    objective.eta.copy_(marginals.variance.mean().sqrt())
    if snapshot:
        objective.snapshot.take(model, x, y, None)
        step = torch.randn(model.family.mean.shape, generator=generator)
        model.family.mean.add_(step * (0.15 * model.family.mean.norm() / step.norm()))
    exact = float(exact_site_elbo(model, x, y).value)
    values = []
    for _ in range(20):
        chosen = objective.draw(model, generator=generator, device=x.device)
        values.append(float(objective.estimate(model, x, y, *chosen, rows=torch.arange(N)).value))
    return (exact - sum(values) / len(values)) / N


def draw(rows: list[dict[str, Any]]) -> None:
    """Bias by columns, a panel for each site."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axis, site in zip(figure.subplots(1, 3), SITES, strict=True):
        own = [row for row in rows if row["site"] == site]
        for name in ("affine", "reparam", "paper", "affine, snapshot"):
            axis.plot([r["columns / m"] for r in own], [r[name] for r in own], "o-", label=name)
        axis.axhline(0.0, color="0.8", linewidth=1)
        axis.set(xscale="log", xlabel="columns / m", title=site)
        axis.set_yscale("symlog", linthresh=1e-2)
    figure.axes[0].set_ylabel("exact - estimate, nats per row")
    figure.axes[0].legend(fontsize=7)
    figure.savefig(HERE / "site_bias.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="m = 1000")
    quick = parser.parse_args().quick
    m = 1000 if quick else 4000
    torch.set_default_dtype(torch.float64)
    rows: list[dict[str, Any]] = []
    for site in SITES:
        model, x, y = problem(site, m)
        start = model.family.mean.detach().clone()
        exact = float(exact_site_elbo(model, x, y).value) / N
        variance = float(model.condition(x, y).predict(x).variance.mean())
        for share in (20, 10, 5, 2, 1):
            row: dict[str, Any] = {
                "site": site,
                "exact": exact,
                "latent variance": variance,
                "columns": m // share,
                "columns / m": 1 / share,
            }
            for bound in ("affine", "reparam", "paper"):
                row[bound] = bias(model, x, y, m // share, bound, False)
            row["affine, snapshot"] = bias(model, x, y, m // share, "affine", True)
            model.family.mean.data.copy_(start)
            rows.append(row)
            print(row, flush=True)
    if not quick:
        draw(rows)

    def of(site: str, share: int, name: str) -> float:
        found = [r for r in rows if r["site"] == site and r["columns"] == m // share]
        return float(found[0][name])

    write(
        None if quick else HERE,
        "site_bias",
        "Bias of the site bound against functions per step",
        [
            f"n = {N}, d = {INPUTS}, m = {m}, mean-field, blocks of {BLOCK}; exact bound minus "
            "mean",
            "estimate over 20 lists, all rows in each, nats per row. Unpublished: the QSGP paper",
            "says only that it is small for logistic and Laplace, large for Gaussian sites.",
        ],
        rows,
        {
            "affine and reparam never exceed the exact bound by more than 0.002 nats": all(
                r[name] > -2e-3 for r in rows for name in ("affine", "reparam", "affine, snapshot")
            ),
            "with all functions in a list, 'paper' exceeds the exact bound where the latent "
            "variance is below one": all(
                (r["paper"] < 0) == (r["latent variance"] < 1) for r in rows if r["columns"] == m
            ),
            "with a tenth of the functions, the bias is larger for Gaussian than for logistic "
            "sites": of("Gaussian 0.09", 10, "affine") > of("logistic", 10, "affine"),
            "with a tenth of the functions, a snapshot divides the bias by at least five": all(
                5 * of(s, 10, "affine, snapshot") < of(s, 10, "affine") for s in SITES
            ),
            "the bound 'affine' is at least as tight as 'reparam'": all(
                r["affine"] <= r["reparam"] + 2e-3 for r in rows
            ),
        },
        pictures=["site_bias.png"],
    )


if __name__ == "__main__":
    main()
