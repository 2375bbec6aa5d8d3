"""Posterior of the weights under a prior of any shape: its axes are turned by reflections."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.linalg.householder import reflect, rotation_of
from gpx.models.base import Marginals
from gpx.models.compressed_statistics import CompressedStatistics
from gpx.models.reweighted_weights import ReweightedForm, ReweightedWeights, standard_normals


class ReflectedForm(ReweightedForm):
    """Prior covariance U diag(lambda_i g_i) U^T of the functions of unit norm, U learned.

    U is a product of Householder reflections along v_i = e_i + tail_i, the tail in the entries
    after i: tails of zero leave the axes where ``OrthogonalForm`` has them, and every rotation is
    reached up to the signs of its columns, which the prior does not see. A position is log g
    (rank,), then the rank (rank - 1) / 2 entries of the tails, row by row.

    Cost: O(rank^2) an evaluation with its gradient; rank^3 more for a prediction.
    Source: Evans thesis, section 5.2.2; tails, and the expected information of a rotation, are
    ours.
    """

    path = "reflections"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.compressed = compressed
        rank = compressed.rank
        self.num_tails = rank * (rank - 1) // 2
        self.num_weights = rank + self.num_tails
        device = compressed.values.device
        self.rows, self.columns = torch.triu_indices(rank, rank, 1, device=device).unbind()

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _ReflectedWeights:
        """As in ``ReweightedForm``, at log g and tails, (num_weights,)."""
        rank = self.compressed.rank
        return _ReflectedWeights(self, log_variances[:rank], log_variances[rank:], log_noise)

    def reflectors(self, tails: Tensor) -> Tensor:
        """v_i as rows (rank, rank), from their tails (num_tails,)."""
        found = torch.eye(self.compressed.rank, dtype=tails.dtype, device=tails.device)
        return found.index_put((self.rows, self.columns), tails)

    def at(self, features: Tensor) -> Tensor:
        """Functions of unit norm that the data see, and the square of the rest: (t, rank + 1).

        Cost: O(m rank) a row.
        """
        wide = features.double()
        seen = wide @ self.compressed.vectors
        rest = (wide.square().sum(1) - seen.square().sum(1)).clamp_min(0.0)
        return torch.cat([seen / self.compressed.values.sqrt(), rest.unsqueeze(1)], 1)


class _ReflectedWeights(ReweightedWeights):
    def __init__(
        self, form: ReflectedForm, log_variances: Tensor, tails: Tensor, log_noise: Tensor
    ) -> None:
        compressed, noise = form.compressed, log_noise.exp()
        self.form, self.compressed, self.noise = form, compressed, noise
        self.variances = log_variances.exp()
        ratio = compressed.values * self.variances / noise
        self.ratio = ratio
        self.shrink = 1.0 / (1.0 + ratio)
        self.reflectors = form.reflectors(tails)
        self.targets = compressed.targets / noise.sqrt()
        self.turned = reflect(self.reflectors, self.targets)
        self.unreached = compressed.rest / noise
        self.fit = self.unreached + (self.turned.square() * self.shrink).sum()
        self.log_determinant = ratio.log1p().sum() + compressed.num_data * log_noise
        self.pull = ratio.sqrt() * self.turned * self.shrink
        self.learned = ratio * self.shrink
        self.num_data = compressed.num_data

    def weight_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``, and of the tails."""
        with torch.enable_grad():
            reflectors = self.reflectors.detach().requires_grad_()
            turned = reflect(reflectors, self.targets)
            (slope,) = torch.autograd.grad(turned, reflectors, -self.turned * self.shrink)
        return torch.cat([super().weight_gradient(), slope[self.form.rows, self.form.columns]])

    def noise_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        quadratic = self.unreached + (self.turned * self.shrink).square().sum()
        return 0.5 * (quadratic + self.learned.sum() - float(self.num_data))

    def fisher(self) -> Tensor:
        """As in ``ReweightedWeights``; of the tails at zero: 4 (c_i - c_j)^2 / (c_i c_j).

        A tail turns axes i and j, of variances c_i and c_j with noise, by twice its entry.
        """
        wide = 1.0 + self.ratio
        first, second = wide[self.form.rows], wide[self.form.columns]
        turns = 4.0 * (first - second).square() / (first * second)
        unseen = self.num_data - self.compressed.rank
        noise = 0.5 * (unseen + self.shrink.square().sum())
        return torch.cat([0.5 * self.learned.square(), turns, noise[None]])

    def _rotation(self) -> Tensor:
        return rotation_of(self.reflectors)

    def _coefficients(self) -> Tensor:
        """Posterior mean of the coefficients of the functions of unit norm (rank,)."""
        root = (self.compressed.values * self.variances).sqrt()
        return self._rotation() @ (root * self.pull)

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``. Cost: O(rank^3)."""
        return self.compressed.vectors @ (self._coefficients() / self.compressed.values.sqrt())

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: rank^3, and rank^2 multiply-adds a row.

        Directions that the data do not see are as in ``OrthogonalForm``.
        """
        seen, unseen = features[:, :-1], features[:, -1]
        spread = self.compressed.values * self.variances * self.shrink
        variance = (seen @ self._rotation()).square() @ spread
        return Marginals(seen @ self._coefficients(), variance + self.variances.mean() * unseen)

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``. Cost: rank^3 + num (2 m rank + rank^2) multiply-adds."""
        compressed = self.compressed
        vectors = compressed.vectors
        everywhere = standard_normals(num, compressed.num_basis, self.pull, generator)
        inside = everywhere @ vectors
        unseen = self.variances.mean().sqrt() * (everywhere - inside @ vectors.mT)
        root = (compressed.values * self.variances * self.shrink).sqrt()
        turned = (root * inside) @ self._rotation().mT + self._coefficients()
        return unseen + (turned / compressed.values.sqrt()) @ vectors.mT
