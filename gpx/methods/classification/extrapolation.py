"""Anderson's extrapolation of iterations that replace Gaussian sites by those they lead to."""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 5
"""Differences of earlier steps from which a step is extrapolated."""

RIDGE = 1e-10
"""Added to the Gram matrix of the normalised differences, which may be dependent."""


def extrapolated(past: Tensor, variance: Tensor) -> Tensor:
    """Anderson's step: the combination of the last targets whose combined residual is least.

    Its precisions may be negative, and far from the fixed point it may be worse than the last
    target: callers check both.

    Args:
        past (k, 2, 2, ...): of k >= 2 points sites and target, the sites to which a whole step
            leads; of both precision, and precision times mean.
        variance: of the posterior at the last one, which gives residuals their unit.

    Returns:
        sites (2, ...).

    Cost: O(k^2) products of vectors.
    Source: Anderson 1965.
    """
    sites, targets = past.unbind(1)
    unit = torch.stack([variance, variance.sqrt()])
    residuals = ((targets - sites) * unit).flatten(1)
    changes = residuals.diff(dim=0)
    size = changes.norm(dim=1, keepdim=True).clamp_min(torch.finfo(changes.dtype).tiny)
    changes = changes / size
    gram = changes @ changes.mT
    gram.diagonal().add_(RIDGE)
    weights = torch.linalg.solve(gram, changes @ residuals[-1]) / size[:, 0]
    return targets[-1] - torch.tensordot(weights, targets.diff(dim=0), dims=1)
