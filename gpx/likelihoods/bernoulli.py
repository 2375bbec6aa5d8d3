"""Two classes, coded -1 and 1, through a logit or probit link."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.special import erfcx, log_ndtr

from gpx.likelihoods.base import Curvature, Likelihood, Tilted
from gpx.likelihoods.logistic_normal import log_logistic_normal
from gpx.likelihoods.quadrature import GaussHermite, GaussLogistic
from gpx.likelihoods.wide_latent import expectation
from gpx.tensor_checks import check_one_of

PROBIT_LIMIT, PROBIT_WIDTH = 1.5, 2.0
"""Standard deviation of f up to which Gauss-Hermite nodes give expectations of the probit link,
and the width of its bend."""

MAX_Z = 12.0
"""z is clamped to this, where N(z) / Phi(z) = 2e-32 and erfcx is far from overflow."""

Link = Literal["logit", "probit"]
Probability = Literal["mean", "median"]


class Sign(torch.distributions.Distribution):
    """A random sign: 1 with probability ``probs``, else -1.

    Args:
        probs (n,): P(y = 1).
        complement (n,): P(y = -1), for its logarithm where ``probs`` is rounded to one: in float32
            a prediction that is certain and wrong would cost at most 16 nats otherwise. None:
            1 - probs, both at least the rounding error.

    Attributes:
        probs (n,), complement (n,).
    """

    has_enumerate_support = False
    arg_constraints = {"probs": torch.distributions.constraints.unit_interval}  # noqa: RUF012

    def __init__(
        self, probs: Tensor, complement: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        limits = torch.finfo(probs.dtype)
        if complement is None:
            self.probs = probs.clamp(limits.eps, 1.0 - limits.eps)
            self.complement = 1.0 - self.probs
        else:
            self.probs = probs.clamp(limits.tiny, 1.0)
            self.complement = complement.clamp(limits.tiny, 1.0)
        super().__init__(probs.shape, validate_args=validate_args)

    def averaged(self) -> Sign:
        """The law whose probabilities are averages over the first axis: (s, n) -> (n,)."""
        return Sign(self.probs.mean(0), self.complement.mean(0))

    @property
    def support(self) -> torch.distributions.constraints.Constraint:
        """-1 and 1, as members of an interval (torch has no constraint for two signs)."""
        return torch.distributions.constraints.interval(-1.0, 1.0)

    @property
    def mean(self) -> Tensor:
        """2 P(y = 1) - 1."""
        return 2.0 * self.probs - 1.0

    @property
    def variance(self) -> Tensor:
        """4 P(y = 1) P(y = -1)."""
        return 4.0 * self.probs * self.complement

    @property
    def mode(self) -> Tensor:
        """The likelier sign; 1 at a tie."""
        return torch.where(self.probs >= 0.5, 1.0, -1.0).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """log P(y = value): values above zero count as 1, others as -1; (n,)."""
        return torch.where(value > 0, self.probs, self.complement).log()

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """Independent signs of shape sample_shape + (n,)."""
        with torch.no_grad():
            shape = torch.Size(sample_shape) + self.batch_shape
            return 2.0 * torch.bernoulli(self.probs.expand(shape)) - 1.0


class Bernoulli(Likelihood):
    """P(y = 1 | f) = link(f), P(y = -1 | f) = link(-f).

    Args:
        link: ``logit`` (logistic sigmoid) or ``probit`` (standard normal distribution function).
        probability: predicted by ``predictive``: ``mean``, E link(f), which averages over the
            latent uncertainty, or ``median``, link(E f), the median of link(f) (the choice of Evans
            and Nair 2020, QSGP).
        num_nodes: quadrature nodes. With 20 nodes and the logit link expectations are within 1.2e-5
            for any latent mean and variance, with the probit link within 1e-6 of themselves.
    """

    log_concave = True
    task = "binary"
    num_classes = 2

    def __init__(
        self, link: Link = "logit", num_nodes: int = 20, probability: Probability = "mean"
    ) -> None:
        super().__init__()
        check_one_of(get_args(Link), link=link)
        check_one_of(get_args(Probability), probability=probability)
        self.link = link
        self.probability = probability
        self.quadrature = (GaussLogistic if link == "logit" else GaussHermite)(num_nodes)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log link(y f), accurate in both tails; (..., n)."""
        return logsigmoid(y * f) if self.link == "logit" else log_ndtr(y * f)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E ``log_prob`` by quadrature; (n,)."""
        if isinstance(self.quadrature, GaussLogistic):
            return -self.quadrature.softplus(-y * mean, variance)
        centre, width = torch.zeros_like(mean), torch.full_like(mean, PROBIT_WIDTH)
        return expectation(
            *(self.quadrature, lambda f: self.log_prob(y, f), mean, variance),
            *(PROBIT_LIMIT, lambda: (centre, width)),
        )

    def predictive(self, mean: Tensor, variance: Tensor) -> Sign:
        """P(y = 1) = E link(f), closed form for probit, quadrature for logit; or the median."""
        if self.probability == "median":
            link = logsigmoid if self.link == "logit" else log_ndtr
            return Sign(link(mean).exp(), link(-mean).exp())
        if isinstance(self.quadrature, GaussLogistic):
            sigmoid = self.quadrature.sigmoid
            return Sign(sigmoid(mean, variance), sigmoid(-mean, variance))
        scaled = mean / (1.0 + variance.clamp_min(0.0)).sqrt()
        return Sign(log_ndtr(scaled).exp(), log_ndtr(-scaled).exp())  # ndtr rounds its tail to zero

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """Closed forms: with r = N(z) / Phi(z) at z = y f, probit has y r and r (r + z).

        Source: Rasmussen and Williams 2006, equations 3.15 and 3.16.
        """
        z = y * f
        if self.link == "logit":
            return Curvature(y * torch.sigmoid(-z), torch.sigmoid(z) * torch.sigmoid(-z))
        # a difference of log densities would not be accurate enough for r + z; beyond MAX_Z r is 0
        ratio = math.sqrt(2.0 / math.pi) / erfcx(-math.sqrt(0.5) * z.clamp_max(MAX_Z))
        # between 0 and 1; rounding may leave it just outside in the far tails
        return Curvature(y * ratio, (ratio * (ratio + z)).clamp(0.0, 1.0))

    def tilted(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tilted:
        """Probit: log Phi(y mean / s), s = sqrt(1 + variance), the link at a shrunk mean.

        Logit: ``log_logistic_normal``, which is exact to rounding.

        Source: Rasmussen and Williams 2006, equations 3.58 and 3.82.
        """
        if self.link == "logit":
            moments = log_logistic_normal(y * mean, variance)
            return Tilted(moments.value, y * moments.slope, -moments.bend)
        scale = (1.0 + variance).sqrt()
        gradient, information = self.curvature(y, mean / scale)
        return Tilted(
            self.log_prob(y, mean / scale), gradient / scale, information / scale.square()
        )
