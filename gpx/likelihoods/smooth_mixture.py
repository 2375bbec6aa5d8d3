"""Laws of targets of mean exp(f) under a normal f, as mixtures of smooth density."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily
from torch.nn.functional import pad

from gpx.likelihoods.quadrature import GaussHermite

MAX_GAP = 2.0
"""Largest distance of neighbouring components in a mixture over quadrature nodes, in standard
deviations of the logarithm of a component; from about 2.5 on there are separate peaks."""
GRID_NODES, GRID_END, GRID_GAP = 57, 8.0, 1.5
"""Number and outermost nodes of the even grid, in standard deviations of f, and the largest
distance of its components, as ``MAX_GAP``."""
MAX_LOG_MEAN = 300.0
"""Largest latent mean in predictions, and largest sum of latent mean, if positive, and variance:
with larger ones the variance of the targets would leave the range of float64."""


def mixture_of_means(
    law: Callable[[Tensor], Distribution],
    widened: Callable[[Tensor, Tensor], Distribution],
    log_variance: Callable[[Tensor], Tensor],
    rule: GaussHermite,
    mean: Tensor,
    variance: Tensor,
) -> MixtureSameFamily:
    """The law of targets of mean exp(f), f ~ N(mean, variance), as a mixture of smooth density.

    In float64, whatever the dtype of mean and variance.

    For a row it is the mixture of ``law(f)`` over the nodes of ``rule`` if neighbouring components
    overlap. If they do not (of 20 nodes and Poisson counts: if the variance of f times the rate two
    standard deviations above its mean exceeds 8) its density would be a comb. Then f is split into
    two independent normal variables. One goes through an even grid of ``GRID_NODES`` nodes. The
    other is as wide as the grid needs, and ``widened`` includes it in the components.

    Args:
        law: of targets given f.
        widened: of targets given (f, v): their law if the logarithm of the mean is itself normal
            with variance v and the mean of the targets is exp(f), or one of the same two moments.
        log_variance: of f: the variance of the logarithm of a target given f.
        rule: nodes of the plain mixture.
        mean, variance (..., n): of f.

    Cost: components of all rows are ``law`` if none needs the grid, and otherwise ``widened``, of
    ``GRID_NODES`` or the nodes of ``rule`` if these are more.
    """
    tiny = torch.finfo(torch.float64).eps  # keeps gradients of square roots finite
    mean = mean.double().clamp_max(MAX_LOG_MEAN)
    variance = variance.double().minimum(MAX_LOG_MEAN - mean.clamp_min(0.0))
    f, v = (part.unsqueeze(-1) for part in (mean, variance))
    v = v.clamp_min(tiny)
    # at the narrowest of the components that matter
    own = log_variance(f + 2.0 * v.sqrt())
    plain = rule.gap**2 * v <= MAX_GAP**2 * own
    # an exported program has one branch
    if not torch.compiler.is_exporting() and bool(plain.all()):
        # float64, as the density of a large count is a difference of large numbers
        return rule.mixture(law, mean, variance)
    count = max(GRID_NODES, len(rule.nodes))
    grid = torch.linspace(-GRID_END, GRID_END, count, dtype=f.dtype, device=f.device)
    gap = 2.0 * GRID_END / (count - 1)
    added = torch.where(plain, 0.0, ((gap / GRID_GAP) ** 2 * v - own).clamp_min(0.0))
    rest = (v - added).sqrt()
    none = (0, count - len(rule.nodes))
    nodes = torch.where(plain, pad(rule.nodes, none), grid)
    shares = torch.where(plain, pad(rule.weights, none), (-0.5 * grid.square()).softmax(0))
    parts = widened(f + 0.5 * added + rest * nodes, added)
    return MixtureSameFamily(Categorical(shares), parts)
