"""Leave-one-out predictions averaged over samples of the hyperparameters."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gpx.inference.finite_mixture import mixture_moments
from gpx.inference.leave_one_out import LeftOut
from gpx.methods.base.posterior import Marginals

ENOUGH_SAMPLES = 10
"""If a leave-one-out prediction rests on fewer effective samples of the hyperparameters than this,
there is a warning."""


def enough_samples(count: int) -> float:
    """The same of ``count`` samples: a quarter, where these are few."""
    return min(ENOUGH_SAMPLES, 0.25 * count)


class LeftOutMixture(NamedTuple):
    """Predictions of each value given all the others: mixtures of S normals.

    The samples are of p(theta | y), and those given all values but y_i are of
    p(theta | y_-i) ~ p(theta | y) / p(y_i | y_-i, theta): each counts with that ratio, so that
    p(y_i | y_-i) is the harmonic mean of the densities by sample. Few effective samples for a row
    mean that it moves the hyperparameters farther than the samples reach.

    Attributes:
        parts: residuals and variances (S, n) by sample.
        shares (S, n): weights of the samples for every row, which sum to one.

    Source: Gelfand, Dey and Chang 1992; Vehtari, Gelman and Gabry 2017, section 2.1.
    """

    parts: LeftOut
    shares: Tensor

    @classmethod
    def of(cls, parts: LeftOut, weights: Tensor) -> LeftOutMixture:
        """From predictions (S, n) by sample, and weights (S,) of the samples given all rows."""
        logs = weights.to(parts.variance).log().unsqueeze(1) - parts.log_density()
        return cls(parts, logs.softmax(0))

    def _moments(self) -> Marginals:
        return mixture_moments(Marginals(*self.parts), self.shares)

    @property
    def residual(self) -> Tensor:
        """y_i minus the mean (n,) of its prediction."""
        return self._moments().mean

    @property
    def variance(self) -> Tensor:
        """Variance (n,) of the predictions, noise included."""
        return self._moments().variance

    def log_density(self) -> Tensor:
        """log p(y_i | all other values) (n,), in nats."""
        return (self.shares.log() + self.parts.log_density()).logsumexp(0)

    def effective_samples(self) -> Tensor:
        """How many equally weighted samples say as much (n,), between 1 and S."""
        return 1.0 / self.shares.square().sum(0)
