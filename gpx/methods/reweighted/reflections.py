"""Posterior of the weights under a prior of any shape: its axes are turned by reflections."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gpx.linalg.householder import reflect, rotation_of
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.orthogonal import OrthogonalForm, OrthogonalWeights


class ReflectedForm(OrthogonalForm):
    """Prior covariance U diag(lambda_i g_i) U^T of the functions of unit norm, U learned.

    U is a product of Householder reflections along v_i = e_i + tail_i, the tail in the entries
    after i: tails of zero leave the axes where ``OrthogonalForm`` has them, and every rotation is
    reached up to the signs of its columns, which the prior does not see. A position is log g
    (rank,), then the rank (rank - 1) / 2 entries of the tails, row by row.

    Cost: O(rank^2) an evaluation with its gradient; rank^3 more for a prediction, and rank^2
    multiply-adds for each of its rows.
    Source: Evans thesis, section 5.2.2; tails, and the expected information of a rotation, are
    ours.
    """

    path = "reflections"

    def __init__(self, compressed: CompressedStatistics) -> None:
        super().__init__(compressed)
        rank = compressed.rank
        self.num_tails = rank * (rank - 1) // 2
        self.num_weights = rank + self.num_tails
        device = compressed.values.device
        self.rows, self.columns = torch.triu_indices(rank, rank, 1, device=device).unbind()

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> ReflectedWeights:
        """As in ``ReweightedForm``, at log g and tails, (num_weights,)."""
        rank = self.compressed.rank
        return ReflectedWeights(self, log_variances[:rank], log_variances[rank:], log_noise)

    def reflectors(self, tails: Tensor) -> Tensor:
        """v_i as rows (rank, rank), from their tails (num_tails,)."""
        found = torch.eye(self.compressed.rank, dtype=tails.dtype, device=tails.device)
        return found.index_put((self.rows, self.columns), tails)


class ReflectedWeights(OrthogonalWeights):
    """Weights along axes A = Lambda^{-1/2} U Lambda^{1/2}: U turns the functions of unit norm.

    Args:
        form: with the data.
        log_variances (rank,), tails (num_tails,), log_noise (): where.
    """

    def __init__(
        self, form: ReflectedForm, log_variances: Tensor, tails: Tensor, log_noise: Tensor
    ) -> None:
        self.form, self.reflectors = form, form.reflectors(tails)
        turned = reflect(self.reflectors, form.compressed.targets)
        super().__init__(form.compressed, turned, log_variances, log_noise)

    @cached_property
    def axes(self) -> Tensor:
        """A (rank, rank); computed for predictions only. Cost: rank^3."""
        root = self.compressed.values.sqrt()
        return rotation_of(self.reflectors) * root / root.unsqueeze(1)

    def along(self, seen: Tensor) -> Tensor:
        """As in ``OrthogonalWeights``."""
        return seen @ self.axes

    def turned(self, coordinates: Tensor) -> Tensor:
        """As in ``OrthogonalWeights``."""
        return coordinates @ self.axes.mT

    def weight_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``, and of the tails."""
        pulled = self.targets * self.shrink / self.noise.sqrt()
        with torch.enable_grad():
            reflectors = self.reflectors.detach().requires_grad_()
            turned = reflect(reflectors, self.compressed.targets)
            (slope,) = torch.autograd.grad(turned, reflectors, -pulled)
        return torch.cat([super().weight_gradient(), slope[self.form.rows, self.form.columns]])

    def fisher(self) -> Tensor:
        """As in ``ReweightedWeights``; of the tails at zero: 4 (c_i - c_j)^2 / (c_i c_j).

        A tail turns axes i and j, of variances c_i and c_j with noise, by twice its entry.
        """
        wide = 1.0 + self.ratio
        first, second = wide[self.form.rows], wide[self.form.columns]
        turns = 4.0 * (first - second).square() / (first * second)
        straight = super().fisher()
        return torch.cat([straight[:-1], turns, straight[-1:]])
