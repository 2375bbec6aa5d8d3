"""Gamma likelihood: positive targets whose deviation is proportional to their mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gpx.constraints import positive_parameter
from gpx.likelihoods.base import Curvature, Likelihood
from gpx.likelihoods.quadrature import GaussHermite
from gpx.likelihoods.smooth_mixture import LatentMixture, mixture_of_means


class Gamma(Likelihood):
    """Positive y of mean exp(f) and variance exp(2 f) / shape: durations, amounts, costs.

    Models without a prior mean, such as networks, call ``start``: f is then relative to a level,
    the logarithm of the mean of all training targets, so that their unit makes no difference.

    With shape 1 it is the exponential distribution; for large ones log y is normal around f with
    variance 1 / shape. Targets must not be standardised.

    Args:
        shape: its initial value, no unit; learned.
        num_nodes: quadrature nodes of the predictive mixture, if they are dense enough.

    ``expected_log_prob`` is a closed form.

    Source: McCullagh and Nelder 1989, chapter 8, with a logarithmic link.
    """

    log_concave = True
    task = "positive"
    shape: Tensor
    level: Tensor

    def __init__(self, shape: float = 1.0, num_nodes: int = 20) -> None:
        super().__init__()
        positive_parameter(self, "shape", shape)
        self.quadrature = GaussHermite(num_nodes)
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}level", torch.zeros(()))  # of earlier versions
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def start(self, residual: Tensor) -> None:
        """Set the level to the logarithm of the mean of the targets (n,)."""
        self.level.fill_(float(residual.double().mean().log()))

    def outputs(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of the logarithm of the mean, level included."""
        return mean + self.level.to(mean.dtype), variance

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Log density of y under mean exp(f), per unit of y; (..., n)."""
        wide = f.double() + self.level
        found = self._log_density(y, wide, wide)
        return found.to(torch.promote_types(y.dtype, f.dtype))

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """``log_prob`` with E exp(-f) = exp(-mean + variance / 2); (..., n)."""
        wide = mean.double() + self.level
        found = self._log_density(y, wide, torch.sub(wide, variance.double(), alpha=0.5))
        return found.to(torch.promote_types(y.dtype, mean.dtype))

    def predictive(self, mean: Tensor, variance: Tensor) -> LatentMixture:
        """Mixture of gamma distributions, in float64; see ``mixture_of_means``.

        Where components must be wider than p(y | f), they are gamma distributions of smaller shape
        and the same two moments. ``log_prob`` and moments are exact.
        """
        shape = self.shape.double()

        def law(f: Tensor) -> torch.distributions.Gamma:
            return torch.distributions.Gamma(shape.expand_as(f), shape * (-f).exp())

        def widened(f: Tensor, added: Tensor) -> torch.distributions.Gamma:
            less = 1.0 / (1.0 / shape + (1.0 + 1.0 / shape) * added.expm1())
            return torch.distributions.Gamma(less.expand_as(f), less * (-f).exp())

        of_log = torch.special.polygamma(1, shape)
        return mixture_of_means(
            *(_WholeLogarithm(self), law, widened, lambda f: of_log.expand_as(f)),
            *(self.quadrature, mean.double() + self.level, variance),
            spread=(0.0, 1.0 / shape),
        )

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """shape (y exp(-f) - 1) and shape y exp(-f)."""
        return self._curvature(y, f + self.level.to(f.dtype))

    def _curvature(self, y: Tensor, f: Tensor) -> Curvature:
        excess, shape = y.log() - f, self.shape
        return Curvature(shape * excess.expm1(), shape * excess.exp())

    def _log_density(self, y: Tensor, f: Tensor, lowest: Tensor) -> Tensor:
        """shape (log y - f - y exp(-lowest)) and what does not depend on f; float64."""
        # y exp(-f) - 1 - log(y exp(-f)) is the square of a small number where the shape is large
        log_y, shape = y.double().log(), self.shape.double()
        constant = shape * shape.log() - shape - shape.lgamma()
        return constant - log_y + shape * ((log_y - f) - (log_y - lowest).expm1())


class _WholeLogarithm(nn.Module):
    """The likelihood as a function of the logarithm of the mean, level included."""

    num_latents = 1

    def __init__(self, likelihood: Gamma) -> None:
        super().__init__()
        self.likelihood = likelihood

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """As in ``Likelihood``."""
        return self.likelihood._log_density(y, f, f)

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """As in ``Likelihood``."""
        return self.likelihood._curvature(y, f)
