"""REPARAM, the published comparison: Gaussian weights trained by sampled gradients.

q makes the weights independent Gaussians; a step draws rows and weights, w = mean + deviation eps,
and follows the gradient of the bound at these (Evans thesis, section 7.6: batches of 100 rows, 10
draws a step, 1000 steps below 3000 rows and 10,000 above). Its optimiser is not stated: Adam here,
with the rate, 0.01 or 0.1, of smaller error on a tenth of the training rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

RATES = (0.01, 0.1)
BATCH = 100
DRAWS = 10


def sampled_bound(
    mean: Tensor,
    log_deviation: Tensor,
    features: Tensor,
    targets: Tensor,
    noise: float,
    eps: Tensor,
) -> tuple[Tensor, Tensor]:
    """The fit of some rows at draws of the weights, and minus KL(q || N(0, I)); nats.

    Args:
        mean, log_deviation (m,): of q, weights in units of their prior deviation.
        features (b, m), targets (b,): of the rows.
        noise: variance.
        eps (S, m): draws of standard normal numbers; the mean over them is unbiased.
    """
    weights = mean + log_deviation.exp() * eps
    error = (targets - weights @ features.mT).square().sum(1).mean()
    square = (2.0 * log_deviation).exp()
    divergence = 0.5 * (square + mean.square() - 1.0 - 2.0 * log_deviation).sum()
    return -0.5 * error / noise, -divergence


def trained_means(
    features: Tensor, targets: Tensor, noise: float, rate: float, steps: int, seed: int
) -> Tensor:
    """Means (m,) of q after Adam from the prior. Cost: steps BATCH DRAWS m multiply-adds."""
    draws = torch.Generator().manual_seed(seed)
    n, m = features.shape
    mean, log_deviation = (torch.zeros(m, dtype=torch.float64, requires_grad=True) for _ in "12")
    optimiser = torch.optim.Adam([mean, log_deviation], lr=rate)
    for _ in range(steps):
        rows = torch.randint(n, (min(n, BATCH),), generator=draws)
        eps = torch.randn(DRAWS, m, generator=draws, dtype=torch.float64)
        fit, divergence = sampled_bound(
            mean, log_deviation, features[rows], targets[rows], noise, eps
        )
        optimiser.zero_grad()
        (-(n / len(rows) * fit + divergence) / n).backward()
        optimiser.step()
    return mean.detach()


def reparam_means(features: Tensor, targets: Tensor, noise: float, seed: int = 0) -> Tensor:
    """Means (m,) of q at the rate that is better on a tenth of the rows."""
    n = len(targets)
    steps = 1000 if n < 3000 else 10_000
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    held, kept = order[: max(1, n // 10)], order[max(1, n // 10) :]

    def error(rate: float) -> float:
        means = trained_means(features[kept], targets[kept], noise, rate, steps, seed)
        return float((targets[held] - features[held] @ means).square().mean().nan_to_num(torch.inf))

    return trained_means(features, targets, noise, min(RATES, key=error), steps, seed)
