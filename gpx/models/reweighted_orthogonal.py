"""Posterior of the weights under a prior that is diagonal along the eigenvectors of Phi^T Phi."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.models.base import Marginals
from gpx.models.compressed_statistics import CompressedStatistics
from gpx.models.reweighted_weights import ReweightedForm, ReweightedWeights, standard_normals


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

    def weights(self, log_variances: Tensor, log_noise: Tensor) -> _OrthogonalWeights:
        """As in ``ReweightedForm``."""
        return _OrthogonalWeights(self.compressed, log_variances, log_noise)

    def at(self, features: Tensor) -> Tensor:
        """Features along the directions that the data see, and the square of the rest: (t, rank+1).

        Cost: O(m rank) a row.
        """
        wide = features.double()
        seen = wide @ self.compressed.vectors
        rest = (wide.square().sum(1) - seen.square().sum(1)).clamp_min(0.0)
        return torch.cat([seen, rest.unsqueeze(1)], 1)


class _OrthogonalWeights(ReweightedWeights):
    def __init__(
        self, compressed: CompressedStatistics, log_variances: Tensor, log_noise: Tensor
    ) -> None:
        noise = log_noise.exp()
        self.compressed = compressed
        self.variances = log_variances.exp()
        ratio = compressed.values * self.variances / noise
        self.shrink = 1.0 / (1.0 + ratio)
        self.targets = compressed.targets / noise.sqrt()
        self.unreached = compressed.rest / noise
        self.fit = self.unreached + (self.targets.square() * self.shrink).sum()
        self.log_determinant = ratio.log1p().sum() + compressed.num_data * log_noise
        self.pull = ratio.sqrt() * self.targets * self.shrink
        self.learned = ratio * self.shrink
        self.num_data = compressed.num_data

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
        return self.compressed.vectors @ (self.variances.sqrt() * self.pull)

    def marginals(self, features: Tensor) -> Marginals:
        """As in ``ReweightedWeights``. Cost: O(rank) a row.

        Directions that the data do not see keep their prior variance, the mean of the g_i: they
        say nothing at the training inputs, and elsewhere that nothing is known.

        Source: Evans thesis, section 5.2.2 (all m functions for the variance).
        """
        seen, unseen = features[:, :-1], features[:, -1]
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
        return unseen + (self.variances.sqrt() * self.pull + root * inside) @ vectors.mT
