"""Ordinal likelihood: ordered classes between cut points of one latent function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import softplus
from torch.special import log_ndtr

from gpx.constants import LOG_TWO_PI
from gpx.constraints import positive_parameter
from gpx.errors import ConfigError
from gpx.likelihoods.base import Curvature, Likelihood, Tilted, class_law, require_labels
from gpx.likelihoods.bernoulli import PROBIT_LIMIT, PROBIT_WIDTH, Link
from gpx.likelihoods.quadrature import GaussHermite, GaussLogistic
from gpx.likelihoods.wide_latent import expectation
from gpx.linalg.running_sum import running_sum
from gpx.tensor_checks import check_one_of


class Ordinal(Likelihood):
    """P(y <= c | f) = link(b_c - f) with cut points b_0 < ... < b_{C-2}, y = 0 ... C - 1.

    The class is the interval between cut points that contains f plus noise of unit scale, logistic
    or normal. Cut points are learned; initially all classes are about equally likely under
    f ~ N(0, 1). With the logit link log p is a sum of two log-sigmoids and a term without f, so
    that ``GaussLogistic`` gives expectations within 2.5e-5 for any latent mean and variance.

    Args:
        num_classes: C, at least three.
        link: ``logit`` or ``probit``.
        num_nodes: quadrature nodes of the expectations.
        order: for text targets, the texts from the lowest class to the highest; None: targets are
            numbers.

    Attributes:
        first_cut (): b_0.
        gaps (C - 2,): distances of consecutive cut points, positive.

    Raises:
        ConfigError: fewer than three classes, or another number of them than ``order`` has.

    Source: Chu and Ghahramani 2005.
    """

    log_concave = True
    task = "ordinal"
    gaps: Tensor

    def __init__(
        self,
        num_classes: int,
        link: Link = "logit",
        num_nodes: int = 20,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 3:
            raise ConfigError(
                f"ordinal classes must be three or more, got {num_classes}: take "
                "likelihood=Bernoulli() for two"
            )
        check_one_of(get_args(Link), link=link)
        if order is not None and len(order) != num_classes:
            raise ConfigError(f"order names {len(order)} classes, and there are {num_classes}")
        self.num_classes = num_classes
        self.link = link
        self.order = None if order is None else tuple(order)
        self.quadrature = (GaussLogistic if link == "logit" else GaussHermite)(num_nodes)
        shares = torch.arange(1, num_classes, dtype=torch.float64) / num_classes
        # standard deviation of f plus noise
        width = math.sqrt(1.0 + (math.pi**2 / 3.0 if link == "logit" else 1.0))
        cuts = width * math.sqrt(2.0) * torch.erfinv(2.0 * shares - 1.0)
        self.first_cut = nn.Parameter(cuts[0].to(torch.get_default_dtype()))
        positive_parameter(self, "gaps", cuts.diff())

    @property
    def cut_points(self) -> Tensor:
        """b (C - 1,), increasing."""
        return torch.cat([self.first_cut.view(1), self.first_cut + running_sum(self.gaps)])

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log P(y | f), accurate in both tails; (..., n)."""
        if self.link == "probit":
            return self._log_interval(y, f, torch.ones_like(f))
        lower, upper, above, below = self._ends(y)
        rises, falls = above * softplus(lower - f), below * softplus(f - upper)
        return self._log_width(y) - rises - falls

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E ``log_prob`` by quadrature; (..., n)."""
        if isinstance(self.quadrature, GaussHermite):
            return expectation(
                *(self.quadrature, lambda f: self.log_prob(y, f), mean, variance),
                *(PROBIT_LIMIT, lambda: self._place(y)),
            )
        lower, upper, above, below = self._ends(y)
        rises = above * self.quadrature.softplus(lower - mean, variance)
        falls = below * self.quadrature.softplus(mean - upper, variance)
        return self._log_width(y) - rises - falls

    def predictive(self, mean: Tensor, variance: Tensor) -> Categorical:
        """Probabilities of the classes, in closed form for probit, by quadrature for logit."""
        if isinstance(self.quadrature, GaussLogistic):
            rest = self.cut_points - mean.unsqueeze(-1)
            variances = variance.unsqueeze(-1).expand_as(rest)
            below = self.quadrature.sigmoid(rest, variances)
            above = self.quadrature.sigmoid(-rest, variances)
            # differences in the tail where both values are small
            lower = rest[..., 1:] + rest[..., :-1] < 0.0
            inner = torch.where(lower, below.diff(dim=-1), -above.diff(dim=-1))
            probs = torch.cat([below[..., :1], inner, above[..., -1:]], -1)
        else:
            scale = (1.0 + variance.clamp_min(0.0)).sqrt()
            each = [torch.full_like(mean, c) for c in range(self.num_classes)]
            probs = torch.stack([self._log_interval(y, mean, scale).exp() for y in each], -1)
        return class_law(probs)

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """Closed forms, of differences of logistic functions or of normal densities."""
        if self.link == "probit":
            return self._interval_curvature(y, f, torch.ones_like(f))
        lower, upper, above, below = self._ends(y)
        rise, fall = above * torch.sigmoid(lower - f), below * torch.sigmoid(f - upper)
        information = rise * torch.sigmoid(f - lower) + fall * torch.sigmoid(upper - f)
        return Curvature(rise - fall, information)

    @property
    def closed_moments(self) -> bool:
        """As in ``Likelihood``: those of the probit link."""
        return self.link == "probit"

    def tilted(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tilted:
        """Probit: P(y) at a mean and cut points divided by sqrt(1 + variance).

        Logit: by quadrature.
        """
        if self.link == "logit":
            return super().tilted(y, mean, variance)
        scale = (1.0 + variance).sqrt()
        return Tilted(self._log_interval(y, mean, scale), *self._interval_curvature(y, mean, scale))

    def _ends(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cut points below and above the class, and whether they exist (1 or 0), each (n,).

        A missing one is replaced by another cut point, since infinity has no gradient.
        """
        require_labels(self, y, self.num_classes)
        cuts, label = self.cut_points, y.long()
        lower, upper = cuts[(label - 1).clamp_min(0)], cuts[label.clamp_max(len(cuts) - 1)]
        return lower, upper, (label > 0).to(cuts), (label < len(cuts)).to(cuts)

    def _place(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Where log p bends under the probit link: the middle of the class, and a width; (n,)."""
        lower, upper, above, below = self._ends(y)
        middle = (above * lower + below * upper) / (above + below)
        return middle, PROBIT_WIDTH + 0.5 * above * below * (upper - lower)

    def _log_width(self, y: Tensor) -> Tensor:
        """log(1 - exp(-(upper - lower))), zero for the lowest and the highest class; (n,)."""
        inside = (y.long() - 1).clamp(0, len(self.gaps) - 1)
        found = torch.log(-torch.expm1(-self.gaps[inside]))
        return torch.where((y > 0) & (y < self.num_classes - 1), found, 0.0)

    def _log_interval(self, y: Tensor, f: Tensor, scale: Tensor) -> Tensor:
        """log(Phi((upper - f) / scale) - Phi((lower - f) / scale)); (..., n)."""
        lower, upper, above, below = self._ends(y)
        left, right = (lower - f) / scale, (upper - f) / scale
        # reflect so that Phi is small at both ends; missing ends are replaced
        turned = left + right > 0.0
        near, far = torch.where(turned, -left, right), torch.where(turned, -right, left)
        top, bottom = log_ndtr(near), log_ndtr(far)
        both = (above * below).bool().expand_as(top)
        gap = torch.where(both, bottom - top, -1.0).clamp_max(-torch.finfo(top.dtype).tiny)
        one = log_ndtr(torch.where(above.bool(), -left, right))
        return torch.where(both, top + torch.log(-torch.expm1(gap)), one)

    def _interval_curvature(self, y: Tensor, f: Tensor, scale: Tensor) -> Curvature:
        """Derivatives of ``_log_interval`` in f."""
        lower, upper, above, below = self._ends(y)
        total = self._log_interval(y, f, scale) + 0.5 * LOG_TWO_PI
        left, right = (lower - f) / scale, (upper - f) / scale
        at_left = above * torch.exp((-0.5 * left.square() - total) * above)
        at_right = below * torch.exp((-0.5 * right.square() - total) * below)
        gradient = at_left - at_right
        # one minus a variance; rounding may leave it just outside in the far tails
        information = (gradient.square() + right * at_right - left * at_left).clamp(0.0, 1.0)
        return Curvature(gradient / scale, information / scale.square())
