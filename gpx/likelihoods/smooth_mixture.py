"""Laws of targets under a normal f, as mixtures of smooth density; their own density is exact."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily
from torch.nn.functional import pad

from gpx.backends import row_slices
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.tilted import LogConcave, tilted_by_quadrature

MAX_GAP = 2.0
"""Largest distance of neighbouring components in a mixture over quadrature nodes, in standard
deviations of the logarithm of a component; from about 2.5 on there are separate peaks."""
GRID_NODES, GRID_END, GRID_GAP = 57, 8.0, 1.5
"""Number and outermost nodes of the even grid, in standard deviations of f, and the largest
distance of its components, as ``MAX_GAP``."""
WIDE, WIDE_NODES = 4.0, 161
"""Latent variance above which the even grid has ``WIDE_NODES`` nodes, so that its components are
narrower: the distributions that replace log-normal ones agree with them to a percent only if they
are narrow."""
MAX_LOG_MEAN = 300.0
"""Largest latent mean in predictions, and largest sum of latent mean, if positive, and variance:
with larger ones the variance of the targets would leave the range of float64."""

DENSITY_ROWS = 1 << 15
"""Entries of a density that are computed at once; each takes some hundred evaluations."""


class ExactMixture(MixtureSameFamily):
    """The law of targets under f ~ N(mean, variance): exact density, else a mixture.

    The nodes of the mixture follow f alone, so that they are none where a target far from all
    expectations would have its f: the density there is many nats too low. ``log_prob`` is instead
    an integral whose nodes follow the target. Draws, distribution function and quantiles are those
    of the mixture.

    Args:
        mixture: of the components.
        likelihood: p(y | f); without gradients a copy is kept, as it is now.
        latent_mean, latent_variance: of f, float64; broadcast to the batch of the mixture, with a
            last dimension if there are several latent functions.

    Cost: some hundreds of evaluations of the likelihood for every target.
    """

    def __init__(
        self,
        mixture: MixtureSameFamily,
        likelihood: Any,
        latent_mean: Tensor,
        latent_variance: Tensor,
    ) -> None:
        checked = mixture._validate_args
        super().__init__(
            mixture.mixture_distribution, mixture.component_distribution, validate_args=checked
        )
        self.trained = torch.is_grad_enabled()
        keeps = self.trained or torch.compiler.is_exporting()
        self.likelihood = likelihood if keeps else copy.deepcopy(likelihood)
        several: int = likelihood.num_latents
        shape = self.batch_shape + ((several,) if several > 1 else ())
        self.latent_mean = latent_mean.expand(shape)
        self.latent_variance = latent_variance.expand(shape)

    @abstractmethod
    def log_average(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log E p(y | f) of some targets (m,), float64, given the moments of f for each."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log E p(value | f), nats, as wide as the mixture; differentiable as the moments are."""
        if self._validate_args:
            self._validate_sample(value)
        tiny = torch.finfo(torch.float64).eps  # keeps gradients of square roots finite
        several = self.latent_mean.shape[len(self.batch_shape) :]
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        y = value.double().expand(shape).reshape(-1)
        parts = self.latent_mean, self.latent_variance.clamp_min(tiny)
        moments = [part.expand(shape + several).reshape(-1, *several) for part in parts]
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            found = [
                self.log_average(y[own], *(part[own] for part in moments))
                for own in row_slices(y.numel(), DENSITY_ROWS)
            ]
        whole = torch.cat(found).view(shape) if found else y.view(shape)
        return whole.to(self.component_distribution.mean.dtype)

    @property
    def mixture(self) -> MixtureSameFamily:
        """The mixture alone, whose density is that of its components: cheaper, for sums."""
        parts = self.mixture_distribution, self.component_distribution
        return MixtureSameFamily(*parts, validate_args=self._validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ExactMixture:
        """As in ``torch.distributions``."""
        mixture = self.mixture.expand(batch_shape)
        return self.of_same_likelihood(mixture, self.latent_mean, self.latent_variance)

    def of_same_likelihood(
        self, mixture: MixtureSameFamily, latent_mean: Tensor, latent_variance: Tensor
    ) -> ExactMixture:
        """Another batch of such laws, with gradients if this one has them."""
        with torch.enable_grad():  # takes no copy of the likelihood, which is one where need be
            made = self._another(mixture, latent_mean, latent_variance)
        made.trained = self.trained
        return made

    def _another(
        self, mixture: MixtureSameFamily, latent_mean: Tensor, latent_variance: Tensor
    ) -> ExactMixture:
        return type(self)(mixture, self.likelihood, latent_mean, latent_variance)


class LatentMixture(ExactMixture):
    """``ExactMixture`` of targets of mean exp(f): the density is that of ``tilted_by_quadrature``.

    Nor do nodes that follow f reach where most of E exp(2 f) is if f is wide: mean and variance are
    closed forms, too.

    Args:
        mixture, likelihood, latent_mean, latent_variance: of ``ExactMixture``.
        spread: a and b (), such that a exp(f) + b exp(2 f) is the variance of targets given f.

    Cost: some 200 evaluations of the likelihood for every target.
    """

    def __init__(
        self,
        mixture: MixtureSameFamily,
        likelihood: LogConcave,
        latent_mean: Tensor,
        latent_variance: Tensor,
        spread: tuple[float, Tensor],
    ) -> None:
        super().__init__(mixture, likelihood, latent_mean, latent_variance)
        self.spread = spread

    @property
    def mean(self) -> Tensor:
        """E exp(f), float64."""
        return (self.latent_mean + 0.5 * self.latent_variance).exp()

    @property
    def variance(self) -> Tensor:
        """E Var(y | f) + Var exp(f), float64."""
        mean, (single, square) = self.mean, self.spread
        wide = self.latent_variance.expm1()
        return single * mean + mean.square() * (square * (wide + 1.0) + wide)

    def log_average(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """As in ``ExactMixture``."""
        return tilted_by_quadrature(self.likelihood, y, mean, variance).log_normaliser

    def _another(
        self, mixture: MixtureSameFamily, latent_mean: Tensor, latent_variance: Tensor
    ) -> LatentMixture:
        return LatentMixture(mixture, self.likelihood, latent_mean, latent_variance, self.spread)


def mixture_of_means(
    likelihood: LogConcave,
    law: Callable[[Tensor], Distribution],
    widened: Callable[[Tensor, Tensor], Distribution],
    log_variance: Callable[[Tensor], Tensor],
    rule: GaussHermite,
    mean: Tensor,
    variance: Tensor,
    spread: tuple[float, Tensor],
) -> LatentMixture:
    """The law of targets of mean exp(f), f ~ N(mean, variance), as a mixture of smooth density.

    In float64, whatever the dtype of mean and variance. Its ``log_prob`` and moments are exact.

    For a row it is the mixture of ``law(f)`` over the nodes of ``rule`` if neighbouring components
    overlap. If they do not (of 20 nodes and Poisson counts: if the variance of f times the rate two
    standard deviations above its mean exceeds 8) its density would be a comb. Then f is split into
    two independent normal variables. One goes through an even grid of ``GRID_NODES`` nodes, or
    ``WIDE_NODES`` if the variance is above ``WIDE``, or the nodes of ``rule`` if these are more.
    The other is as wide as the grid needs, and ``widened`` includes it in the components.

    Args:
        likelihood: p(y | f).
        law: of targets given f.
        widened: of targets given (f, v): their law if the logarithm of the mean is itself normal
            with variance v and the mean of the targets is exp(f), or one of the same two moments.
        log_variance: of f: the variance of the logarithm of a target given f.
        rule: nodes of the plain mixture.
        mean, variance (..., n): of f.
        spread: as for ``LatentMixture``.

    Cost: components of all rows are ``law`` if none needs the grid, and otherwise ``widened``, as
    many as the row that needs most.
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
        plain_mixture = rule.mixture(law, mean, variance)
        return LatentMixture(plain_mixture, likelihood, mean, variance, spread)
    wide = v > WIDE
    several = not torch.compiler.is_exporting() and bool(wide.any())
    few, many = (max(nodes, len(rule.nodes)) for nodes in (GRID_NODES, WIDE_NODES))
    count = many if several else few
    grid, grid_shares, gap = even_grid(GRID_END, few, count, f)
    if several:
        choices = zip(even_grid(GRID_END, many, count, f), (grid, grid_shares, gap), strict=True)
        grid, grid_shares, gap = (torch.where(wide, *choice) for choice in choices)
    added = torch.where(plain, 0.0, ((gap / GRID_GAP) ** 2 * v - own).clamp_min(0.0))
    rest = (v - added).sqrt()
    none = (0, count - len(rule.nodes))
    nodes = torch.where(plain, pad(rule.nodes, none), grid)
    shares = torch.where(plain, pad(rule.weights, none), grid_shares)
    parts = widened(f + 0.5 * added + rest * nodes, added)
    mixture = MixtureSameFamily(Categorical(shares), parts)
    return LatentMixture(mixture, likelihood, mean, variance, spread)


def even_grid(end: float, count: int, width: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``count`` even nodes from -end to end in place of a standard normal variable.

    Returns:
        nodes and shares, padded with zeros to ``width``, and the distance of nodes ().
    """
    grid = torch.linspace(-end, end, count, dtype=like.dtype, device=like.device)
    shares = (-0.5 * grid.square()).softmax(0)
    return pad(grid, (0, width - count)), pad(shares, (0, width - count)), grid[1] - grid[0]
