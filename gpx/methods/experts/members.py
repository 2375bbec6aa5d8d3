"""Conditioned experts: factors of their covariance matrices, and their predictions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.experts.evidence import HINT
from gpx.methods.experts.rows import ExpertBatch


class BaseExpert(NamedTuple):
    """The expert whose posterior is what the others start from, in the place of the prior.

    Attributes:
        inputs (b, d): its rows.
        factor (b, b): L with L L^T = k(x_b, x_b) + noise I.
        white (b,): L^{-1} (y_b - m(x_b)).
    """

    inputs: Tensor
    factor: Tensor
    white: Tensor

    def whiten(self, cross: Tensor) -> Tensor:
        """L^{-1} k(x_b, .) for covariances (..., b, q)."""
        return torch.linalg.solve_triangular(self.factor, cross, upper=False)


class Members(NamedTuple):
    """Experts of a batch given their rows.

    With a base, K and k_* are covariances under the posterior of the base: k(a, b) less w_a^T w_b
    with w = L^{-1} k(x_b, .), and r is the residual from the base's mean. What an expert then knows
    is what it and the base know together.

    Attributes:
        batch: the experts.
        inputs (c, m, d): of their rows.
        factor (c, m, m): of K + noise I.
        alpha (c, m): (K + noise I)^{-1} r.
        white (c, b, m): w of the rows, where there is a base.
        jitter: added to the diagonals.
    """

    batch: ExpertBatch
    inputs: Tensor
    factor: Tensor
    alpha: Tensor
    white: Tensor | None
    jitter: float

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        batch: ExpertBatch,
        inputs: Tensor,
        matrices: Tensor,
        noise: Tensor,
        residual: Tensor,
        base: tuple[BaseExpert, Tensor] | None = None,
    ) -> Members:
        """Condition.

        Args:
            batch, inputs: as above.
            matrices (c, m, m), noise (c,), residual (c, m): prior covariances, noise variances,
                targets less prior means.
            base: the base, and prior covariances (c, b, m) of its rows with those of the experts.

        Raises:
            NotPositiveDefinite: at every permitted jitter.
        """
        white = None
        if base is not None:
            expert, cross = base
            white = expert.whiten(cross)
            matrices = torch.baddbmm(matrices, white.mT, white, alpha=-1.0)
            residual = residual - torch.einsum("cbm,b->cm", white, expert.white)
        system = batch.covariance(matrices, noise)
        name = f"the kernel matrix of an expert of {system.shape[-1]} rows plus noise"
        factor, report = cholesky(system, name=name, hint=HINT)
        right = batch.zero_padding(residual).unsqueeze(2)
        alpha = torch.cholesky_solve(right, factor).squeeze(2)
        return cls(batch, inputs, factor, alpha, white, report.jitter)

    @property
    def bytes(self) -> int:
        """What it holds."""
        held = (self.inputs, self.factor, self.alpha, self.white)
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def given(self, cross: Tensor, whitened: Tensor | None = None) -> Tensor:
        """Covariances of the rows with test points given the base, zero for padding: (c, m, t).

        Args:
            cross (c, m, t): prior covariances.
            whitened (b, t): L^{-1} k(x_b, x_*), where there is a base.
        """
        if whitened is not None:
            assert self.white is not None
            cross = cross - self.white.mT @ whitened
        if self.batch.mask is not None:
            cross = cross * self.batch.mask.unsqueeze(2)
        return cross

    @torch.no_grad()
    def predict(self, cross: Tensor, start: Marginals, prior: Tensor) -> Marginals:
        """Mean less the prior mean, and variance, of every expert: (c, t) each.

        Args:
            cross (c, m, t): as ``given`` gives them.
            start: mean less the prior mean, and variance, without the experts' rows: those of the
                prior or of the base, (c, t) or (t,).
            prior: prior variances, of the same shape: a variance of which rounding leaves no digit
                is set to the size of the rounding.
        """
        mean = start.mean + torch.einsum("cm,cmt->ct", self.alpha, cross)
        white = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        least = torch.finfo(prior.dtype).eps * prior
        return Marginals(mean, torch.maximum(start.variance - white.square().sum(1), least))
