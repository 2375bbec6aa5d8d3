"""Experts conditioned on their rows: factors of their covariance matrices and predictions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.experts.evidence import CHOLESKY_HINT
from gpx.methods.experts.rows import ExpertBatch


class CommunicationExpert(NamedTuple):
    """An expert whose posterior takes the place of the prior for all other experts.

    Attributes:
        inputs (b, d): its rows.
        factor (b, b): L with L L^T = k(x_b, x_b) + noise I.
        white (b,): L^{-1} (y_b - m(x_b)).
    """

    inputs: Tensor
    factor: Tensor
    white: Tensor

    def whiten(self, cross: Tensor) -> Tensor:
        """L^{-1} k(x_b, .) for covariances k(x_b, .) (..., b, q)."""
        return torch.linalg.solve_triangular(self.factor, cross, upper=False)


class Members(NamedTuple):
    """A batch of experts conditioned on their rows.

    With a communication expert, K and k_* are covariances under its posterior,
    k(a, a') - w_a^T w_a' with w = L^{-1} k(x_b, .), and r is the residual from its mean: every
    expert conditions on the rows of the communication expert as well as its own.

    Attributes:
        batch: the experts.
        inputs (c, m, d): of their rows.
        factor (c, m, m): Cholesky factor of K + noise I.
        alpha (c, m): (K + noise I)^{-1} r.
        white (c, b, m): w of the rows, if there is a communication expert.
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
    def condition(
        cls,
        batch: ExpertBatch,
        inputs: Tensor,
        matrices: Tensor,
        noise: Tensor,
        residual: Tensor,
        communication: tuple[CommunicationExpert, Tensor] | None = None,
    ) -> Members:
        """Condition a batch of experts on their rows.

        Args:
            batch, inputs: as above.
            matrices (c, m, m), noise (c,), residual (c, m): prior covariances, noise variances,
                targets minus prior means.
            communication: the communication expert, and prior covariances (c, b, m) between its
                rows and those of the experts.

        Raises:
            NotPositiveDefinite: no Cholesky factor at any permitted jitter.
        """
        white = None
        if communication is not None:
            expert, cross = communication
            white = expert.whiten(cross)
            matrices = torch.baddbmm(matrices, white.mT, white, alpha=-1.0)
            residual = residual - torch.einsum("cbm,b->cm", white, expert.white)
        system = batch.covariance(matrices, noise)
        name = f"the kernel matrix of an expert of {system.shape[-1]} rows plus noise"
        factor, report = cholesky(system, name=name, hint=CHOLESKY_HINT)
        right = batch.zero_padding(residual).unsqueeze(2)
        alpha = torch.cholesky_solve(right, factor).squeeze(2)
        return cls(batch, inputs, factor, alpha, white, report.jitter)

    @property
    def bytes(self) -> int:
        """Memory that its tensors take."""
        held = (self.inputs, self.factor, self.alpha, self.white)
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def conditional_covariance(self, cross: Tensor, whitened: Tensor | None = None) -> Tensor:
        """Covariances k_* (c, m, t) of the rows with test points, see the class; zero for padding.

        Args:
            cross (c, m, t): prior covariances.
            whitened (b, t): L^{-1} k(x_b, x_*), if there is a communication expert.
        """
        if whitened is not None:
            assert self.white is not None
            cross = cross - self.white.mT @ whitened
        if self.batch.mask is not None:
            cross = cross * self.batch.mask.unsqueeze(2)
        return cross

    @torch.no_grad()
    def predict(self, cross: Tensor, start: Marginals, prior: Tensor) -> Marginals:
        """Mean minus the prior mean, and variance, of every expert: (c, t) each.

        Args:
            cross (c, m, t): from ``conditional_covariance``.
            start: mean minus the prior mean, and variance, before the experts' own rows: those of
                the prior or of the communication expert, (c, t) or (t,).
            prior: prior variances, of the same shape; variances are at least their rounding error.
        """
        mean = start.mean + torch.einsum("cm,cmt->ct", self.alpha, cross)
        white = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        smallest = torch.finfo(prior.dtype).eps * prior
        return Marginals(mean, torch.maximum(start.variance - white.square().sum(1), smallest))
