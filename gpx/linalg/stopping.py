"""Stopping rules for conjugate gradients.

Every rule computes one number per right-hand side from the current residual r = b - K v and stops
that side once the number is at or below the tolerance. The rules in nats or in units of the
posterior mean assume Q <= K (in the order of positive semi-definite matrices), where Q is the
preconditioner: true for low-rank-plus-noise preconditioners (Nystrom, pivoted Cholesky), not for
Jacobi or circulant ones. Without such a Q, give the noise variance: sigma^2 I <= K always holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpx.errors import ConfigError


class Residual:
    """The quantities a rule may use, all in the unit of the right-hand sides.

    Attributes:
        vector (..., n, c): r = b - K v.
        gamma (..., c): r^T Q^{-1} r, with Q = I when there is no preconditioner.
        rhs_norm (..., c): ||b||.
        norm (..., c): ||r||.
        relative (..., c): ||r|| / ||b||, 0 where both are zero.

    Args:
        vector, gamma, rhs_norm: the above for r / scale and b / scale, whose squares do not under-
            or overflow.
        scale (..., c): one positive number per side.
        preconditioned: False when gamma is ||r||^2.
    """

    def __init__(
        self,
        vector: Tensor,
        gamma: Tensor,
        rhs_norm: Tensor,
        *,
        scale: Tensor,
        preconditioned: bool = True,
    ) -> None:
        self._vector, self._gamma, self._rhs_norm, self._scale = vector, gamma, rhs_norm, scale
        # a scaled right-hand side that is not zero has a norm of at least one
        self._divisor = rhs_norm.clamp(min=torch.finfo(rhs_norm.dtype).tiny)
        self._preconditioned = preconditioned

    def now(self, vector: Tensor, gamma: Tensor) -> Residual:
        """This object, updated with r and r^T Q^{-1} r of another step."""
        self._vector, self._gamma = vector, gamma
        return self

    @property
    def rows(self) -> int:
        """n."""
        return self._vector.shape[-2]

    @property
    def vector(self) -> Tensor:
        """r, (..., n, c); a copy."""
        return self._vector * self._scale.unsqueeze(-2)

    @property
    def gamma(self) -> Tensor:
        """r^T Q^{-1} r, (..., c)."""
        return self._gamma * self._scale * self._scale

    @property
    def rhs_norm(self) -> Tensor:
        """||b||, (..., c)."""
        return self._rhs_norm * self._scale

    @property
    def norm(self) -> Tensor:
        """||r||, (..., c)."""
        return self._scaled_norm() * self._scale

    @property
    def relative(self) -> Tensor:
        """||r|| / ||b||, (..., c)."""
        return self._scaled_norm() / self._divisor

    def _scaled_norm(self) -> Tensor:
        if not self._preconditioned:
            return self._gamma.sqrt()
        return torch.linalg.vector_norm(self._vector, dim=-2)


class StoppingRule(ABC):
    """Stop a right-hand side once ``measure`` is at or below ``tolerance``."""

    needs_preconditioner = False
    norm_alone = False
    """Whether ``measure`` uses norms only, not gamma."""

    def __init__(self, tolerance: float) -> None:
        if not tolerance > 0.0:
            raise ConfigError(
                f"{type(self).__name__}: the tolerance must be positive, got {tolerance}; "
                "iterative solves never reach zero"
            )
        self.tolerance = float(tolerance)

    @abstractmethod
    def measure(self, residual: Residual) -> Tensor:
        """The quantity bounded, (..., c); no host synchronisation."""

    @abstractmethod
    def describe(self) -> str:
        """The quantity in words, for reports."""


class RelativeResidual(StoppingRule):
    """||r|| / ||b|| (0 where b = 0 and v = 0)."""

    norm_alone = True

    def __init__(self, tolerance: float = 1e-6) -> None:
        super().__init__(tolerance)

    def measure(self, residual: Residual) -> Tensor:
        """The quantity bounded, (..., c)."""
        return residual.relative

    def describe(self) -> str:
        """The quantity in words."""
        return "relative residual norm"


class AbsoluteResidual(StoppingRule):
    """||r||, or ||r|| / n with ``per_row`` (the criterion of the iterative GP baselines)."""

    norm_alone = True

    def __init__(self, tolerance: float, *, per_row: bool = False) -> None:
        super().__init__(tolerance)
        self.per_row = per_row

    def measure(self, residual: Residual) -> Tensor:
        """The quantity bounded, (..., c)."""
        return residual.norm / residual.rows if self.per_row else residual.norm

    def describe(self) -> str:
        """The quantity in words."""
        return "residual norm per row" if self.per_row else "residual norm"


class EvidenceBound(StoppingRule):
    """1/2 r^T Q^{-1} r in nats: the quadratic term of the evidence is within epsilon of exact.

    0 <= 1/2 (b^T K^{-1} b - v^T (b + r)) = 1/2 r^T K^{-1} r <= 1/2 r^T Q^{-1} r for Q <= K.

    Args:
        epsilon: nats; the published choices are 1 for training and 1e-3 before predicting.
        noise_variance: use Q = sigma^2 I for the bound, whatever the preconditioner (the criterion
            of Gibbs and MacKay). None: the preconditioner's Q, at no cost; it must be below K.

    Source: Burt thesis, sections 4.1.1, 4.2.1 and 4.3.1.
    """

    def __init__(self, epsilon: float = 1.0, *, noise_variance: float | Tensor | None = None):
        super().__init__(epsilon)
        _check_variance(self, "noise_variance", noise_variance)
        self.noise_variance = noise_variance
        self.needs_preconditioner = noise_variance is None

    def measure(self, residual: Residual) -> Tensor:
        """The quantity bounded, (..., c)."""
        # negative beyond rounding: the preconditioner is not positive definite, and not converged
        return 0.5 * _squared_error(residual, self.noise_variance).abs()

    def describe(self) -> str:
        """The quantity in words."""
        return "bound on the evidence error (nats)"


class PosteriorMeanError(StoppingRule):
    """sqrt(k_** r^T Q^{-1} r): the posterior mean k_*^T v is this close to exact, everywhere.

    Args:
        tolerance: in the unit of the targets.
        prior_variance: the largest prior variance k(x_*, x_*) of the test points.
        noise_variance: as for ``EvidenceBound``.

    Source: Burt thesis, sections 4.2.1 and 4.3.1.
    """

    def __init__(
        self,
        tolerance: float,
        prior_variance: float | Tensor,
        *,
        noise_variance: float | Tensor | None = None,
    ) -> None:
        super().__init__(tolerance)
        _check_variance(self, "noise_variance", noise_variance)
        _check_variance(self, "prior_variance", prior_variance)
        self.prior_variance, self.noise_variance = prior_variance, noise_variance
        self.needs_preconditioner = noise_variance is None

    def measure(self, residual: Residual) -> Tensor:
        """The quantity bounded, (..., c)."""
        # its absolute value as in EvidenceBound: rounding below zero is as small as it is above
        squared = _squared_error(residual, self.noise_variance).abs()
        return (self.prior_variance * squared).sqrt()

    def describe(self) -> str:
        """The quantity in words."""
        return "bound on the posterior mean's error"


def _check_variance(rule: StoppingRule, name: str, value: float | Tensor | None) -> None:
    """Refuse a variance that is not positive: the bound would be met at once, or never."""
    if value is not None and not bool(torch.as_tensor(value > 0.0).all()):
        raise ConfigError(f"{type(rule).__name__}: {name} must be positive, got {value}")


def _squared_error(residual: Residual, noise_variance: float | Tensor | None) -> Tensor:
    if noise_variance is None:
        return residual.gamma
    return residual.norm.square() / noise_variance
