"""Mixtures of finitely many normals: predictions averaged over models or samples."""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from gpx.methods.base.posterior import Marginals
from gpx.tensor_checks import validation


def mixture_moments(parts: Marginals, weights: Tensor | None = None) -> Marginals:
    """Mean and variance (n,) of mixtures of components with means and variances (J, n).

    Args:
        parts: of the components; (J, n, p) of p functions where weights are equal.
        weights (J,), or (J, n) for weights of every row: that sum to one; None: equal.
    """
    count = len(parts.mean)
    share = 1.0 / count if weights is None else weights.to(parts.mean).view(count, -1)
    mean = (share * parts.mean).sum(0)
    # variance within the components and of their means: no difference of large numbers
    variance = (share * (parts.variance + (parts.mean - mean).square())).sum(0)
    return Marginals(mean, variance)


def gaussian_mixture(parts: Marginals, weights: Tensor | None = None) -> MixtureSameFamily:
    """Mixtures of normals, batch shape (n,); their densities are log-sum-exps.

    Args:
        parts: means and variances (J, n) of the components; variances are positive.
        weights (J,), or (J, n) for weights of every row: that sum to one; None: equal.
    """
    count, rows = parts.mean.shape
    if weights is None:
        weights = parts.mean.new_ones(count)
    share = Categorical(probs=weights.to(parts.mean).view(count, -1).mT.expand(rows, count))
    normals = Normal(parts.mean.mT, parts.variance.mT.sqrt())
    return MixtureSameFamily(share, normals, validate_args=validation(parts.mean))
