"""Experts conditioned on their rows: factors of their covariance matrices and predictions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import cholesky_in_place
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

    def whiten(self, cross: Tensor, out: Tensor | None = None) -> Tensor:
        """L^{-1} k(x_b, .) for covariances k(x_b, .) (..., b, q), written to ``out`` if given."""
        return torch.linalg.solve_triangular(self.factor, cross, upper=False, out=out)


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
        storage: Tensor | None = None,
    ) -> Members:
        """Condition a batch of experts on their rows.

        Args:
            batch, inputs: as above.
            matrices (c, m, m), noise (c,), residual (c, m): prior covariances, which are
                overwritten, noise variances, targets minus prior means.
            communication: the communication expert, and prior covariances (c, b, m) between its
                rows and those of the experts.
            storage (c m (m + b),): receives ``factor`` and ``white``; None: a new tensor.

        Raises:
            NotPositiveDefinite: no Cholesky factor at any permitted jitter.
        """
        c, m = residual.shape
        base = 0 if communication is None else len(communication[0].inputs)
        if storage is None:
            storage = matrices.new_empty(c * m * (m + base))
        of_factor, of_white = storage.split([c * m * m, c * m * base])
        white = None
        if communication is not None:
            expert, cross = communication
            white = expert.whiten(cross, of_white.view(c, m, base).mT)
            matrices = matrices.contiguous()  # those of a constant may be one number, expanded
            matrices.baddbmm_(white.mT, white, alpha=-1.0)
            residual = residual - torch.einsum("cbm,b->cm", white, expert.white)
        upper, report = cholesky_in_place(
            lambda buffer: batch.covariance(matrices, noise, buffer),
            of_factor.view(c, m, m),
            name=f"the kernel matrix of an expert of {m} rows plus noise",
            hint=CHOLESKY_HINT,
        )
        factor = upper.mT
        right = batch.zero_padding(residual).unsqueeze(2)
        alpha = torch.cholesky_solve(right, factor).squeeze(2)
        return cls(batch, inputs, factor, alpha, white, report.jitter)

    def conditional_covariance(self, cross: Tensor, whitened: Tensor | None = None) -> Tensor:
        """Covariances k_* (c, m, t) of the rows with test points, see the class; zero for padding.

        Args:
            cross (c, m, t): prior covariances; overwritten.
            whitened (b, t): L^{-1} k(x_b, x_*), if there is a communication expert.
        """
        # as in ``condition``; a graph keeps its own
        cross = cross.clone() if cross.requires_grad else cross.contiguous()
        if whitened is not None:
            assert self.white is not None
            each = whitened.expand(len(cross), *whitened.shape)
            cross.baddbmm_(self.white.mT, each, alpha=-1.0)
        if self.batch.mask is not None:
            cross *= self.batch.mask.unsqueeze(2)
        return cross

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
        # without a graph, ``white`` is not used again
        squares = white.square() if white.requires_grad else white.square_()
        return Marginals(mean, torch.maximum(start.variance - squares.sum(1), smallest))
