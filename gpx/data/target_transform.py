"""Monotone transforms of the target, and predictive distributions of transformed targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, constraints

from gpx.backends import row_slices
from gpx.data.columns.numbers import Floats
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.quantiles import quantile
from gpx.tensor_checks import check_one_of

Kind = Literal["log", "boxcox", "quantile"]

MAX_KNOTS, ROWS_PER_KNOT = 100, 20
"""Most knots of the quantile transform, and training rows for each."""

QUADRATURE_NODES = 100
"""Nodes of the Gauss-Hermite rule for mean and variance of a target."""
MOMENT_VALUES = 1 << 16
"""Values that are held at a time for moments; one for each row and part if these are more."""


@dataclass(frozen=True)
class TargetTransform:
    """An increasing function t = T(y) that gives training targets mean 0 and standard deviation 1.

    y is a target in its own unit, T(y) = (g(y) - shift) / scale. ``log``: g is the logarithm.
    ``boxcox``: g(y) = ((y / u)^p - 1) / p with the power p in [0, 2] of maximum likelihood for
    normal targets, and their geometric mean u, so that powers stay in range whatever their unit.
    ``quantile``: g is piecewise linear and maps quantiles of the training targets to those of the
    normal distribution.

    Attributes:
        kind: see above.
        power: p of ``boxcox``.
        knots, scores: points (y, g(y)) of ``quantile``, both increasing.
        shift, scale: see above.
        log_unit: log u of ``boxcox``; 0 for those of earlier versions.
    """

    kind: Kind
    power: float = 0.0
    knots: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    shift: float = 0.0
    scale: float = 1.0
    log_unit: float = 0.0

    @classmethod
    def fitted(cls, kind: str, y: Floats) -> TargetTransform:
        """The transform fitted to training targets y (n,); positive for ``log`` and ``boxcox``.

        Raises:
            DataError: all targets are equal, or are so to rounding after the transform, or they
                have too few values for ``quantile``.
        """
        require_known(kind)
        if y.min() == y.max():
            raise DataError(
                f"all training targets are {y[0]:g}, so target_transform={kind} cannot be fitted; "
                "leave it out"
            )
        made = cls(kind)  # type: ignore[arg-type]
        if kind == "boxcox":
            # takes a third of a second to import, for which other runs need not wait
            from scipy.stats import boxcox_normmax

            log_unit = float(np.log(y).mean())
            unit = np.exp(np.log(y) - log_unit)  # the power then does not depend on the unit
            power = float(np.clip(boxcox_normmax(unit, method="mle"), 0.0, 2.0))
            made = cls("boxcox", power, log_unit=log_unit)
        elif kind == "quantile":
            count = int(np.clip(len(y) // ROWS_PER_KNOT, 5, MAX_KNOTS))
            levels = (np.arange(count) + 0.5) / count
            knots, first = np.unique(
                np.quantile(y, levels, method="inverted_cdf"), return_index=True
            )
            if len(knots) < 3:
                raise DataError(
                    "the targets have too few different values for target_transform=quantile, "
                    "which needs three quantiles; leave it out"
                )
            # a value that occurs at several levels gets their middle
            last = np.append(first[1:], count) - 1
            scores = ndtri(0.5 * (levels[first] + levels[last]))
            made = cls("quantile", knots=tuple(knots.tolist()), scores=tuple(scores.tolist()))
        raw = made(torch.from_numpy(y))
        scale = float(raw.std(correction=0))
        # the deviation of equal numbers may be rounding
        if not scale > 4.0 * torch.finfo(torch.float64).eps * float(raw.abs().max()):
            raise DataError(
                f"all training targets are {y[0]:g} up to rounding once they are transformed, so "
                f"target_transform={kind} cannot be fitted; leave it out"
            )
        return replace(made, shift=float(raw.mean()), scale=scale)

    def __call__(self, y: Tensor) -> Tensor:
        """T(y), any shape, float64."""
        y = y.double()
        if self.kind == "quantile":
            left, slope, base = self._segments(y, self.knots)
            raw = base + (y - left) * slope
        elif self.power:
            raw = torch.expm1(self.power * (y.log() - self.log_unit)) / self.power
        else:
            raw = y.log() - self.log_unit
        return (raw - self.shift) / self.scale

    def log_slope(self, y: Tensor) -> Tensor:
        """log dT / dy, any shape, float64: log density of y minus that of t."""
        y = y.double()
        if self.kind == "quantile":
            return (self._segments(y, self.knots)[1] / self.scale).log()
        from_unit = self.power * (y.log() - self.log_unit)
        return from_unit - y.log() - math.log(self.scale)

    def inverse(self, t: Tensor) -> Tensor:
        """y with T(y) = t, any shape, float64; 0 where t is below the range of ``boxcox``."""
        raw = t.double() * self.scale + self.shift
        if self.kind == "quantile":
            left, slope, base = self._segments(raw, self.scores)
            return left + (raw - base) / slope
        if self.power:
            powers = (1.0 + self.power * raw).clamp_min(0.0)
            return (powers.log() / self.power + self.log_unit).exp()
        return (raw + self.log_unit).exp()

    def _segments(self, values: Tensor, ends: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Left knot, slope, and score at the left knot, of the segment of each value.

        Beyond the knots, the slope is that from the extreme knot to the knot a tenth of them
        inwards.
        """
        device = values.device
        knots = torch.tensor(self.knots, dtype=torch.float64, device=device)
        scores = torch.tensor(self.scores, dtype=torch.float64, device=device)
        reach = max(1, len(knots) // 10)
        inner = scores.diff() / knots.diff()
        low = (scores[reach] - scores[0]) / (knots[reach] - knots[0])
        high = (scores[-1] - scores[-1 - reach]) / (knots[-1] - knots[-1 - reach])
        slopes = torch.cat([low[None], inner, high[None]])
        limits = torch.tensor(ends, dtype=torch.float64, device=device)
        place = torch.searchsorted(limits, values.contiguous())
        left = (place - 1).clamp_min(0)
        return knots[left], slopes[place], scores[left]

    def state(self) -> dict[str, Any]:
        """State as plain data: texts, numbers and tuples of them."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TargetTransform:
        """The transform of a ``state``; raises ValueError, TypeError or KeyError if invalid."""
        power, shift, scale = (float(state[name]) for name in ("power", "shift", "scale"))
        log_unit = float(state.get("log_unit", 0.0))
        knots, scores = (tuple(map(float, state[name])) for name in ("knots", "scores"))
        sound = state["kind"] in get_args(Kind) and scale > 0.0 and 0.0 <= power <= 2.0
        sound = sound and all(map(math.isfinite, [power, shift, scale, log_unit, *knots, *scores]))
        least = 3 if state["kind"] == "quantile" else 0
        rising = all((np.diff(each) > 0).all() for each in (knots, scores))
        if not sound or not rising or len(knots) != len(scores) or len(knots) < least:
            raise ValueError(f"{state} is not the state of a target transform")
        return cls(state["kind"], power, knots, scores, shift, scale, log_unit)


def require_known(kind: str) -> None:
    """Raise ConfigError for an unknown kind."""
    check_one_of(get_args(Kind), target_transform=kind)


def require_positive(table: Table, kind: str) -> None:
    """Raise DataError if ``kind`` takes a logarithm and a target is not positive."""
    require_known(kind)
    if kind == "quantile" or (table.y > 0.0).all():
        return
    bad = table.y <= 0.0
    raise DataError(
        f"{table.where}, data row {int(bad.argmax()) + 1}, the target ({table.target_name!r}): "
        f"found {table.y[bad.argmax()]:g} (rows like this: {int(bad.sum())}), and "
        f"target_transform={kind} needs positive targets; choose quantile, or leave it out"
    )


class TransformedLaw(Distribution):
    """Distribution of a standardised target v whose transform T(y) has the distribution ``base``.

    y = target_mean + target_scale * v. Probability of ``base`` below the range of the transform is
    placed at the end of that range; quantiles, and densities inside the range, are exact.

    Args:
        base: distribution of T(y), batch shape (n,): normal, or a mixture of normals.
        transform: T.
        target_mean, target_scale: of the standardisation.

    Raises:
        ConfigError: another distribution, for which the mean is not implemented.
    """

    support = constraints.real
    has_rsample = False
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self,
        base: Distribution,
        transform: TargetTransform,
        target_mean: float,
        target_scale: float,
    ) -> None:
        parts = base.component_distribution if isinstance(base, MixtureSameFamily) else base
        if not isinstance(parts, Normal):
            raise ConfigError(
                "target_transform= needs a normal predictive distribution or a mixture of normals, "
                f"not a {type(base).__name__}: leave it out, or use likelihood=Gaussian()"
            )
        super().__init__(base.batch_shape, validate_args=False)
        self.base, self.transform, self.parts = base, transform, parts
        self.target_mean, self.target_scale = target_mean, target_scale
        self._kept_moments: dict[bool, tuple[Tensor, Tensor]] = {}

    def own_unit(self, value: Tensor) -> Tensor:
        """Standardised target -> target in its own unit, float64."""
        return value.double() * self.target_scale + self.target_mean

    def from_base(self, t: Tensor) -> Tensor:
        """Transformed target -> standardised target; maps quantiles to quantiles."""
        return ((self.transform.inverse(t) - self.target_mean) / self.target_scale).to(t.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of standardised targets, with the Jacobian; -inf outside the range."""
        y = self.own_unit(value)
        outside = torch.zeros_like(y, dtype=torch.bool) if self.transform.knots else y <= 0.0
        y = torch.where(outside, 1.0, y)
        slope = self.transform.log_slope(y) + math.log(self.target_scale)
        found = self.base.log_prob(self.transform(y).to(value.dtype)).double() + slope
        return found.masked_fill(outside, -math.inf).to(value)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function of standardised targets; 0 below the range of the transform."""
        y = self.own_unit(value)
        below = torch.zeros_like(y, dtype=torch.bool) if self.transform.knots else y < 0.0
        at = self.transform(torch.where(below, 1.0, y)).to(value.dtype)
        return self.base.cdf(at).masked_fill(below, 0.0)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantiles of standardised targets."""
        return self.from_base(quantile(self.base, value))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws of standardised targets, from the global generator of torch."""
        return self.from_base(self.base.sample(torch.Size(sample_shape)))

    @property
    def mean(self) -> Tensor:
        """Mean, by a Gauss-Hermite rule of ``QUADRATURE_NODES`` nodes."""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance, by the same rule."""
        return self._moments()[1]

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, kept; those without a graph only for calls that need none."""
        with_graph = torch.is_grad_enabled()
        if with_graph not in self._kept_moments:
            self._kept_moments[with_graph] = self._computed_moments()
        return self._kept_moments[with_graph]

    def _computed_moments(self) -> tuple[Tensor, Tensor]:
        """Some nodes at a time, so that memory is that of ``MOMENT_VALUES`` or a few (n, parts)."""
        at, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
        centre, spread = self.parts.mean.double(), self.parts.stddev.double()
        nodes = torch.as_tensor(at).to(centre)
        shares = torch.as_tensor(weights / weights.sum()).to(centre)
        mean, square = torch.zeros_like(centre), torch.zeros_like(centre)
        for rows in row_slices(len(nodes), max(1, MOMENT_VALUES // max(1, centre.numel()))):
            values = self.from_base(centre.unsqueeze(-1) + spread.unsqueeze(-1) * nodes[rows])
            mean = mean + values @ shares[rows]
            square = square + values.square() @ shares[rows]
        if isinstance(self.base, MixtureSameFamily):
            mixture: Categorical = self.base.mixture_distribution
            share = mixture.probs.double()
            mean, square = (mean * share).sum(-1), (square * share).sum(-1)
        like = self.base.mean
        return mean.to(like), (square - mean.square()).clamp_min(0.0).to(like)
