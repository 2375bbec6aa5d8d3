"""Weights under a prior along the eigenvectors of Phi^T Phi, or along axes turned from these."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import normal_columns
from gpx.linalg.householder import reflect, rotation_of
from gpx.methods.base.posterior import Marginals
from gpx.methods.reweighted.weights import CompressedStatistics, ReweightedForm, ReweightedWeights


class OrthogonalForm(ReweightedForm):
    """Prior variances of the eigenvectors of Phi^T Phi: the functions Phi V are orthogonal.

    The inputs decide on the axes of the prior. g_i is the prior variance of v_i^T w in the scale of
    the basis; lambda_i g_i is that of the coefficient of the function of unit norm along it.

    Cost: O(rank) an evaluation with its gradient.
    Source: Evans thesis, section 5.2.3; this form, free of cancellation, is ours.
    """

    path = "orthogonal"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.sums: CompressedStatistics = compressed
        self.num_weights = compressed.rank

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> OrthogonalWeights:
        """As in ``ReweightedForm``."""
        return OrthogonalWeights(self.sums, self.sums.targets, log_variances, log_noise)

    def at(self, features: Tensor) -> Tensor:
        """Features along the eigenvectors, and the squared norm of the rest: (t, rank + 1).

        Cost: O(m rank) a row.
        """
        wide = features.double()
        seen = wide @ self.sums.vectors
        rest = (wide.square().sum(1) - seen.square().sum(1)).clamp_min(0.0)
        return torch.cat([seen, rest.unsqueeze(1)], 1)


class OrthogonalWeights(ReweightedWeights):
    """V^T w = A c with independent c_i ~ N(0, g_i): axes A = I here, turned ones in subclasses.

    A^T Lambda A = Lambda, so that the data as well see every c_i on its own.

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
        self.pull = self.ratio.sqrt() * self.targets * self.shrink
        self.learned = self.ratio * self.shrink
        self.num_data = compressed.num_data

    def along(self, seen: Tensor) -> Tensor:
        """Features (t, rank) along the axes, from those along V: times A."""
        return seen

    def turned(self, coordinates: Tensor) -> Tensor:
        """V^T w from coordinates c (rank,) or (t, rank) along the axes: times A^T."""
        return coordinates

    def inverse_square_trace(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.num_data - self.compressed.rank + self.shrink.square().sum()

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.compressed.vectors @ self.turned(self.variances.sqrt() * self.pull)

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: O(rank) a row.

        Directions orthogonal to all eigenvectors keep their prior variance, the mean of the g_i.
        They do not matter at the training inputs; elsewhere they stand for what is not known.

        Source: Evans thesis, section 5.2.2 (all m functions for the variance).
        """
        seen, unseen = self.along(features[:, :-1]), features[:, -1]
        mean = seen @ (self.variances.sqrt() * self.pull)
        variance = seen.square() @ (self.variances * self.shrink)
        return Marginals(mean, variance + self.variances.mean() * unseen)

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``. Cost: 2 num m rank multiply-adds."""
        vectors = self.compressed.vectors
        everywhere = normal_columns(num, self.compressed.num_basis, self.pull, generator)
        inside = everywhere @ vectors
        unseen = self.variances.mean().sqrt() * (everywhere - inside @ vectors.mT)
        root = (self.variances * self.shrink).sqrt()
        drawn = self.turned(self.variances.sqrt() * self.pull + root * inside)
        return unseen + drawn @ vectors.mT


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
        rank = self.sums.rank
        return ReflectedWeights(self, log_variances[:rank], log_variances[rank:], log_noise)

    def reflectors(self, tails: Tensor) -> Tensor:
        """v_i as rows (rank, rank), from their tails (num_tails,)."""
        found = torch.eye(self.sums.rank, dtype=tails.dtype, device=tails.device)
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
        turned = reflect(self.reflectors, form.sums.targets)
        super().__init__(form.sums, turned, log_variances, log_noise)

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
