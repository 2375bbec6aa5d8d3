"""SVGP and SWSGP with the same parts and training, and SVGP restricted to the nearest points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from problems import Fold

from gpx.kernels import Kernel, Matern52
from gpx.likelihoods import Bernoulli, Gaussian, Likelihood
from gpx.means import Constant
from gpx.models import SVGP, SWSGP, NearestPosterior, SVGPPosterior
from gpx.models import Posterior as AnyPosterior
from gpx.objectives import SVGPELBO, SWSGPObjective

BATCH = 64


def matern(d: int) -> Kernel:
    """Matern 5/2, a lengthscale for each input."""
    return Matern52(d, lengthscale=math.sqrt(d))


def svgp(
    fold: Fold, m: int, likelihood: Likelihood, kernel: Kernel | None = None, **options: Any
) -> SVGP:
    """SVGP-m with its default start."""
    d = fold.x.shape[1]
    made = SVGP(
        kernel=matern(d) if kernel is None else kernel,
        mean=Constant(),
        likelihood=likelihood,
        num_inputs=d,
        num_inducing=m,
        **options,
    ).double()
    made.initialise(fold.x, fold.y, generator=torch.Generator().manual_seed(0))
    return made


def swsgp(
    fold: Fold,
    m: int,
    h: int,
    likelihood: Likelihood,
    kernel: Kernel | None = None,
    **options: Any,
) -> SWSGP:
    """SWSGP-m-h with a full S."""
    d = fold.x.shape[1]
    made = SWSGP(
        kernel=matern(d) if kernel is None else kernel,
        mean=Constant(),
        likelihood=likelihood,
        num_inputs=d,
        num_inducing=m,
        num_neighbours=h,
        covariance="full",
        learn_inducing=True,
        **options,
    ).double()
    made.initialise(fold.x, fold.y, generator=torch.Generator().manual_seed(0))
    return made


def train(model: SVGP | SWSGP, fold: Fold, steps: int, rate: float) -> None:
    """Adam on batches of 64, its rate on a cosine down to a hundredth."""
    total = len(fold.x)
    objective = SVGPELBO(total) if isinstance(model, SVGP) else SWSGPObjective(total)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, rate / 100.0)
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randint(total, (BATCH,), generator=draws)
        optimiser.zero_grad()
        (-objective.evidence(model, fold.x[rows], fold.y[rows]).value / total).backward()
        optimiser.step()
        schedule.step()


def seen_through(posterior: SVGPPosterior, h: int, jitter: float = 1e-6) -> NearestPosterior:
    """SVGP-M-H: the Z and q(u) of an SVGP, every input given the h nearest of them."""
    found = NearestPosterior(
        posterior.kernel, posterior.mean, num_neighbours=h, rule="kernel", jitter=jitter
    ).double()
    root = torch.linalg.inv(posterior.inverse_cholesky).tril()  # u - mean(Z) = root v
    found.keep(
        posterior.inducing,
        inducing=posterior.inducing,
        q_mean=root @ posterior.q_mean[0],
        q_root=root @ posterior.q_factor[0],
    )
    return found


@torch.no_grad()
def scores(posterior: AnyPosterior, likelihood: Likelihood, fold: Fold) -> dict[str, float]:
    """Error (RMSE, or the share of wrong labels) and mean negative log density of the test data."""
    marginals = posterior.predict(fold.test_x)
    law = likelihood.predictive(marginals.mean, marginals.variance)
    if isinstance(likelihood, Bernoulli):
        wrong = (marginals.mean > 0.0) != (fold.test_y > 0.0)
        probability = law.log_prob(fold.test_y)
        return {"error": float(wrong.double().mean()), "mnll": float(-probability.mean())}
    found = {
        "rmse": float((marginals.mean - fold.test_y).square().mean().sqrt()),
        "mnll": float(-law.log_prob(fold.test_y).mean()),
    }
    if fold.truth is not None:
        found["rmse to f"] = float((marginals.mean - fold.truth).square().mean().sqrt())
    return found


@torch.no_grad()
def best_means(model: SWSGP, fold: Fold) -> None:
    """Set m to the maximum of the full-data objective, all else fixed: a linear system.

    With A the interpolation weights of inputs over inducing points and P_n the inverse covariance
    of those that input n uses, (A^T A / noise + sum_n P_n / N) m = A^T y / noise; no step is taken.
    Gaussian noise, a prior mean of zero.
    """
    m, n = len(model.inducing), len(fold.x)
    near = model.nearest(fold.x)
    system = model.system(near, fold.x.unsqueeze(1))
    a = torch.zeros(n, m).double().scatter_(1, near, system.weights.squeeze(2))
    places = (near.unsqueeze(2) * m + near.unsqueeze(1)).flatten()
    inner = torch.cholesky_inverse(system.factor).flatten()
    precision = torch.zeros(m * m).double().index_add_(0, places, inner).view(m, m) / n
    assert isinstance(model.likelihood, Gaussian)
    noise_variance = model.likelihood.noise_variance
    left = a.mT @ a / noise_variance + precision
    mean = torch.linalg.solve(left, a.mT @ fold.y / noise_variance)
    model.q_scaled_mean.copy_((mean / model.unit)[:, None])


@torch.no_grad()
def least_error(model: SWSGP, fold: Fold) -> float:
    """RMSE of the m that fits the test rows best, at the model's kernel and Z.

    No q(u) has a smaller one there: the rest of the error is due to using H points alone.
    """
    near = model.nearest(fold.test_x)
    weights = model.system(near, fold.test_x.unsqueeze(1)).weights.squeeze(2)
    a = torch.zeros(len(near), len(model.inducing)).double().scatter_(1, near, weights)
    residual = (fold.test_y - model.mean(fold.test_x))[:, None]
    best = torch.linalg.lstsq(a, residual, driver="gelsd").solution
    return float((residual - a @ best).square().mean().sqrt())


def noise() -> Gaussian:
    """Of every regression, at its start."""
    return Gaussian(0.1)


def mean_of(found: list[Mapping[str, float]]) -> dict[str, float | None]:
    """Means over folds, and standard deviations as ``... s.d.``; None of one fold."""
    table = {key: torch.tensor([row[key] for row in found]) for key in found[0]}
    means = {key: float(values.mean()) for key, values in table.items()}
    spread = {k: float(v.std()) if len(v) > 1 else None for k, v in table.items()}
    return means | {f"{key} s.d.": value for key, value in spread.items()}


def held(model: SVGP | SWSGP, *names: str) -> None:
    """Freeze parameters whose names start so."""
    for name, parameter in model.named_parameters():
        if name.startswith(names):
            parameter.requires_grad_(False)
