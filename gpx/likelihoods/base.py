"""What a likelihood is: p(y | f) for one point at a time, and its expectations under Gaussians."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor
from torch.distributions import Distribution, Independent, LowRankMultivariateNormal, Normal

from gpx.constructed import Constructed
from gpx.errors import NotAvailable, class_name

Task = Literal["regression", "binary", "multiclass", "count"]


def class_numbers(y: Tensor, task: Task) -> Tensor:
    """Classes 0 .. C - 1 (n,) of targets, which are -1 and 1 where there are two."""
    return (y > 0).long() if task == "binary" else y.long()


class Curvature(NamedTuple):
    """First and second derivatives of log p(y | f) with respect to the latents of each row.

    Attributes:
        gradient (..., n) or (..., n, p): d log p / df.
        information (..., n) or (..., n, p): w >= 0. Minus the second derivative is w for one
            latent, and diag(w) - w w^T with the entries of w adding to one for p of them.
    """

    gradient: Tensor
    information: Tensor


class Tilted(NamedTuple):
    """log Z = log E p(y | f) under f ~ N(mean, variance), and its derivatives in the mean.

    The law of f given y then has the mean ``mean + variance * gradient`` and the variance
    ``variance - variance^2 * information``.

    Attributes:
        log_normaliser (..., n): log Z, nats.
        gradient (..., n): d log Z / d mean.
        information (..., n): minus the second derivative.
    """

    log_normaliser: Tensor
    gradient: Tensor
    information: Tensor


class Likelihood(Constructed, ABC):
    """Observation model: targets are independent given the latent functions.

    Shapes: y (n,), or (n, num_outputs) for several outputs; f, mean and variance (..., n) for one
    latent function, (..., n, p) for p of them, where the leading dimensions are samples or members
    of an ensemble. Everything is in nats and in the (standardised) unit of the targets.

    Attributes:
        num_latents: p, how many latent functions the targets of one row depend on.
        num_outputs: how many targets a row has.
        log_concave: whether log p(y | f) is concave in f for every y.
        task: decides how targets are encoded and which metrics apply. ``regression``: real numbers;
            ``binary``: -1 or 1; ``multiclass``: 0, 1, ..., p - 1; ``count``: 0, 1, 2, ...
    """

    num_latents: int = 1
    num_outputs: int = 1
    log_concave: ClassVar[bool]
    task: ClassVar[Task]

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f) in nats, summed over the outputs of a row: f as above -> (..., n)."""

    @abstractmethod
    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f) in nats under f ~ N(mean, variance), points and latents independent.

        Args:
            y (n,) or (n, num_outputs): targets.
            mean, variance (..., n) or (..., n, p): latent marginals; the variance is not negative.

        Returns:
            (..., n), differentiable in mean, variance and the likelihood's own parameters.
        """

    @abstractmethod
    def predictive(self, mean: Tensor, variance: Tensor) -> Distribution:
        """Distribution of y with batch shape (..., n), given latent marginals as above.

        Of several outputs it is a ``torch.distributions.Independent`` of event shape
        (num_outputs,), whose base distribution has the marginals of the outputs, or a
        ``LowRankMultivariateNormal``; see ``target_marginals``.
        """

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """Derivatives of ``log_prob`` at y (n,) and f as above, themselves differentiable in f.

        Newton's method and Laplace's approximation need it. Likelihoods whose second derivative is
        not of the form of ``Curvature``, or tells nothing (a kink), leave it out.

        Raises:
            NotAvailable: this likelihood leaves it out.
        """
        raise NotAvailable(
            f"the {class_name(self)} likelihood declares no second derivatives (curvature), which "
            "Laplace's approximation needs; model=SVGP() takes any likelihood"
        )

    def tilted(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tilted:
        """log E p(y | f) and its derivatives to rounding, where a likelihood knows how.

        Args:
            y (n,): targets.
            mean, variance (..., n): of f; one latent function, the variance is not negative.

        Raises:
            NotAvailable: it does not.
        """
        raise NotAvailable(
            f"the {class_name(self)} likelihood does not know its moments (tilted), which "
            "expectation propagation needs; take likelihood=Bernoulli(), model=LaplaceGP() or "
            "model=SVGP()"
        )


def target_marginals(predictive: Distribution) -> Distribution:
    """The law of every single target: batch shape (..., n), or (..., n, p) for p outputs.

    Args:
        predictive: what ``Likelihood.predictive`` gives.
    """
    if isinstance(predictive, LowRankMultivariateNormal):
        return Normal(predictive.mean, predictive.stddev, validate_args=False)
    return predictive.base_dist if isinstance(predictive, Independent) else predictive
