"""Weights with a prior along the eigenvectors of Phi^T Phi, or along rotated axes."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import normal_columns
from gpx.linalg.householder import reflect, rotation_of
from gpx.methods.base.posterior import Marginals
from gpx.methods.reweighted.weights import CompressedStatistics, ReweightedForm, ReweightedWeights


class OrthogonalForm(ReweightedForm):
    """A prior variance for each eigenvector v_i of Phi^T Phi, so that all is diagonal.

    The training inputs determine the axes of the prior. g_i is the prior variance of v_i^T w;
    lambda_i g_i is that of the coefficient of the corresponding function of unit norm.

    Cost: O(rank) per evaluation with its gradient.
    Source: Evans thesis, section 5.2.3, written without cancellation.
    """

    path = "orthogonal"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.sums: CompressedStatistics = compressed
        self.num_weights = compressed.rank

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> OrthogonalWeights:
        """As in ``ReweightedForm``."""
        return OrthogonalWeights(self.sums, self.sums.targets, log_variances, log_noise)

    def prepare_features(self, features: Tensor) -> Tensor:
        """Features along the eigenvectors, and the squared norm of the remainder: (t, rank + 1).

        Cost: O(m rank) per row.
        """
        features = features.double()
        along = features @ self.sums.vectors
        remainder = (features.square().sum(1) - along.square().sum(1)).clamp_min(0.0)
        return torch.cat([along, remainder.unsqueeze(1)], 1)


class OrthogonalWeights(ReweightedWeights):
    """V^T w = A c with independent c_i ~ N(0, g_i); axes A = I here, rotated in subclasses.

    A^T Lambda A = Lambda, so that the c_i are independent a posteriori, too.

    Args:
        compressed: of the data.
        targets (rank,): b of ``compressed`` along the axes.
        log_variances (rank,), log_noise (): log g and log s.
    """

    def __init__(
        self,
        compressed: CompressedStatistics,
        targets: Tensor,
        log_variances: Tensor,
        log_noise: Tensor,
    ) -> None:
        self.compressed, self.noise = compressed, log_noise.exp()
        self.variances = log_variances.exp()
        self.ratio = compressed.values * self.variances / self.noise
        self.shrink = 1.0 / (1.0 + self.ratio)
        self.targets = targets / self.noise.sqrt()
        unreached = compressed.rest / self.noise
        self.fit = unreached + (self.targets.square() * self.shrink).sum()
        self.misfit = unreached + (self.targets * self.shrink).square().sum()
        self.log_determinant = self.ratio.log1p().sum() + compressed.num_data * log_noise
        self.scaled_mean = self.ratio.sqrt() * self.targets * self.shrink
        self.variance_reduction = self.ratio * self.shrink
        self.num_data = compressed.num_data

    def features_along_axes(self, features: Tensor) -> Tensor:
        """Features (t, rank) along the axes, from those along V (t, rank): times A."""
        return features

    def from_axes(self, coordinates: Tensor) -> Tensor:
        """V^T w from coordinates c (rank,) or (t, rank) along the axes: times A^T."""
        return coordinates

    def inverse_square_trace(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.num_data - self.compressed.rank + self.shrink.square().sum()

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.compressed.vectors @ self.from_axes(self.variances.sqrt() * self.scaled_mean)

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: O(rank) a row.

        Directions orthogonal to all eigenvectors have the mean of the g_i as prior variance. The
        training inputs have no features in these directions, so it is not reduced by the data.

        Source: Evans thesis, section 5.2.2 (all m functions for the variance).
        """
        along, remainder = self.features_along_axes(features[:, :-1]), features[:, -1]
        mean = along @ (self.variances.sqrt() * self.scaled_mean)
        variance = along.square() @ (self.variances * self.shrink)
        return Marginals(mean, variance + self.variances.mean() * remainder)

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``. Cost: 2 num m rank multiply-adds."""
        vectors = self.compressed.vectors
        everywhere = normal_columns(num, self.compressed.num_basis, self.scaled_mean, generator)
        inside = everywhere @ vectors
        unseen = self.variances.mean().sqrt() * (everywhere - inside @ vectors.mT)
        root = (self.variances * self.shrink).sqrt()
        drawn = self.from_axes(self.variances.sqrt() * self.scaled_mean + root * inside)
        return unseen + drawn @ vectors.mT


class ReflectedForm(OrthogonalForm):
    """Prior covariance U diag(lambda_i g_i) U^T of the functions of unit norm, with learned U.

    U is a product of Householder reflections along v_i = e_i + tail_i, where tail_i has entries
    after i only. Zero tails give the axes of ``OrthogonalForm``, and every rotation can be
    represented up to the signs of its columns, which do not affect the prior. A position is log g
    (rank,), then the rank (rank - 1) / 2 entries of the tails, row by row.

    Cost: O(rank^2) per evaluation with its gradient; rank^3 for a prediction, and rank^2
    multiply-adds for each of its rows.
    Source: Evans thesis, section 5.2.2; the parametrisation by tails and their expected information
    are additions.
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
        rank = self.sums.rank
        return ReflectedWeights(self, log_variances[:rank], log_variances[rank:], log_noise)

    def reflectors(self, tails: Tensor) -> Tensor:
        """The reflectors v_i as rows (rank, rank), from their tails (num_tails,)."""
        found = torch.eye(self.sums.rank, dtype=tails.dtype, device=tails.device)
        return found.index_put((self.rows, self.columns), tails)


class ReflectedWeights(OrthogonalWeights):
    """Weights along axes A = Lambda^{-1/2} U Lambda^{1/2}, where U rotates the unit functions.

    Args:
        form: with the sums over the data.
        log_variances (rank,), tails (num_tails,), log_noise (): log g, tails and log s.
    """

    def __init__(
        self, form: ReflectedForm, log_variances: Tensor, tails: Tensor, log_noise: Tensor
    ) -> None:
        self.form, self.reflectors = form, form.reflectors(tails)
        targets = reflect(self.reflectors, form.sums.targets)
        super().__init__(form.sums, targets, log_variances, log_noise)

    @cached_property
    def axes(self) -> Tensor:
        """A (rank, rank); computed for predictions only. Cost: rank^3."""
        root = self.compressed.values.sqrt()
        return rotation_of(self.reflectors) * root / root.unsqueeze(1)

    def features_along_axes(self, features: Tensor) -> Tensor:
        """As in ``OrthogonalWeights``."""
        return features @ self.axes

    def from_axes(self, coordinates: Tensor) -> Tensor:
        """As in ``OrthogonalWeights``."""
        return coordinates @ self.axes.mT

    def weight_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``; also with respect to the tails."""
        upstream = -self.targets * self.shrink / self.noise.sqrt()
        with torch.enable_grad():
            reflectors = self.reflectors.detach().requires_grad_()
            targets = reflect(reflectors, self.compressed.targets)
            (slope,) = torch.autograd.grad(targets, reflectors, upstream)
        return torch.cat([super().weight_gradient(), slope[self.form.rows, self.form.columns]])

    def fisher(self) -> Tensor:
        """As in ``ReweightedWeights``; for tails, at zero, 4 (c_i - c_j)^2 / (c_i c_j).

        An entry of a tail rotates axes i and j, with variances c_i and c_j including noise, by
        twice its value.
        """
        variances = 1.0 + self.ratio
        first, second = variances[self.form.rows], variances[self.form.columns]
        of_tails = 4.0 * (first - second).square() / (first * second)
        others = super().fisher()
        return torch.cat([others[:-1], of_tails, others[-1:]])
