"""Posterior of the weights under a prior that is diagonal along the eigenvectors of Phi^T Phi."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from gpx.methods.base.model import Marginals
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.weights import ReweightedForm, ReweightedWeights, standard_normals


class OrthogonalForm(ReweightedForm):
    """Prior variances of the eigenvectors of Phi^T Phi: the functions Phi V are orthogonal.

    The structure of the prior is chosen by the inputs then. g_i is the prior variance of v_i^T w,
    in the scale of the basis; of the function of unit norm along it, it is lambda_i g_i.

    Cost: O(rank) an evaluation with its gradient.
    Source: Evans thesis, section 5.2.3; this form, free of cancellation, is ours.
    """

    path = "orthogonal"

    def __init__(self, compressed: CompressedStatistics) -> None:
        self.compressed = compressed
        self.num_weights = compressed.rank

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> OrthogonalWeights:
        """As in ``ReweightedForm``."""
        return OrthogonalWeights(self.compressed, self.compressed.targets, log_variances, log_noise)

    def of_targets(self, projected: Tensor, squared: Tensor) -> OrthogonalForm:
        """As in ``ReweightedForm``."""
        found = copy.copy(self)
        found.compressed = self.compressed.of_targets(projected, squared)
        return found

    def at(self, features: Tensor) -> Tensor:
        """Features along the directions that the data see, and the square of the rest: (t, rank+1).

        Cost: O(m rank) a row.
        """
        wide = features.double()
        seen = wide @ self.compressed.vectors
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
        self.unreached = compressed.rest / self.noise
        self.fit = self.unreached + (self.targets.square() * self.shrink).sum()
        self.log_determinant = self.ratio.log1p().sum() + compressed.num_data * log_noise
        self.pull = self.ratio.sqrt() * self.targets * self.shrink
        self.learned = self.ratio * self.shrink
        self.num_data = compressed.num_data

    def along(self, seen: Tensor) -> Tensor:
        """Rows (t, rank) of features along V, along the axes: times A."""
        return seen

    def turned(self, coordinates: Tensor) -> Tensor:
        """c (rank,) or (t, rank) as V^T w: times A^T from the right."""
        return coordinates

    def noise_gradient(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        quadratic = self.unreached + (self.targets * self.shrink).square().sum()
        return 0.5 * (quadratic + self.learned.sum() - float(self.num_data))

    def fisher(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        unseen = self.num_data - self.compressed.rank
        noise = 0.5 * (unseen + self.shrink.square().sum())
        return torch.cat([0.5 * self.learned.square(), noise[None]])

    def mean(self) -> Tensor:
        """As in ``ReweightedWeights``."""
        return self.compressed.vectors @ self.turned(self.variances.sqrt() * self.pull)

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: O(rank) a row.

        Directions that the data do not see keep their prior variance, the mean of the g_i: they
        say nothing at the training inputs, and elsewhere that nothing is known.

        Source: Evans thesis, section 5.2.2 (all m functions for the variance).
        """
        seen, unseen = self.along(features[:, :-1]), features[:, -1]
        mean = seen @ (self.variances.sqrt() * self.pull)
        variance = seen.square() @ (self.variances * self.shrink)
        return Marginals(mean, variance + self.variances.mean() * unseen)

    def draw(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``ReweightedWeights``. Cost: 2 num m rank multiply-adds."""
        vectors = self.compressed.vectors
        everywhere = standard_normals(num, self.compressed.num_basis, self.pull, generator)
        inside = everywhere @ vectors
        unseen = self.variances.mean().sqrt() * (everywhere - inside @ vectors.mT)
        root = (self.variances * self.shrink).sqrt()
        drawn = self.turned(self.variances.sqrt() * self.pull + root * inside)
        return unseen + drawn @ vectors.mT
