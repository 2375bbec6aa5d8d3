"""Posterior process of regression on a re-weighted basis: a mixture over samples of theta."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.bases.base import Basis
from gpx.bases.frozen import fixed_copy
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.inference.finite_mixture import gaussian_mixture, mixture_moments
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import functions_by_blocks
from gpx.methods.base.trained_columns import TrainedColumns
from gpx.methods.reweighted.state import ReweightedState, Structure
from gpx.methods.reweighted.weights import ReweightedWeights

LOG_OF_ZERO_VARIANCE = math.log(1e-300)
"""Stored as the logarithm of a prior variance of zero."""

NEGLIGIBLE_VARIANCE = 1e-12
"""Prior variances below this fraction of the largest are negligible."""


class ReweightedPosterior(TrainedColumns, ReweightedState, Posterior):
    """Posterior process of ``Reweighted``: a mixture of T Gaussian processes, one per sample.

    The state holds sums over the data, and predictions compute a factor for every sample again, as
    T factors would take T m^2 numbers.

    Attributes:
        gram (m, m), projected (m,), totals (2,): sufficient statistics.
        samples (T, k + 1): (log g, log noise variance).
        frame (m, rank), scale (m,), latent_sums (T, m + 1): as in ``ReweightedState``.

    Cost: T times that of one factorisation, and of a row of predictions, see ``reweighted_form``.
    Source: Evans thesis, section 5.4 (type-I predictive distribution).
    """

    def __init__(self, basis: Basis, mean: Mean, structure: Structure) -> None:
        super().__init__()
        self.basis = fixed_copy(basis)
        self.mean = untrained(mean)
        self.structure: Structure = structure
        self._fixed: list[ReweightedWeights] = []
        self.register_state(2, next(self.basis.parameters()).device)

    def fill(
        self,
        statistics: SufficientStatistics,
        samples: Tensor,
        frame: Tensor | None = None,
        latent_sums: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """Store sums, samples (T, k + 1), and frame, latent sums and scale if there are any."""
        gram, projected = statistics.gram.clone(), statistics.projected.clone()
        self.statistics = replace(statistics, gram=gram, projected=projected)
        self.samples = samples.clone()
        self.scale = self.scale[:0] if scale is None else scale.clone()
        self.frame = self.frame[:0] if frame is None else frame.clone()
        self.latent_sums = self.latent_sums[:0] if latent_sums is None else latent_sums.clone()

    def fix(self) -> None:
        """As in ``Posterior``: computes the factors of all samples, T m^2 numbers."""
        self._fixed = list(self.weights())

    def weights(self) -> Iterator[ReweightedWeights]:
        """The posterior of the weights at each sample in turn."""
        for number in range(len(self.samples)):
            yield self._weights_at(number)

    def _weights_at(self, number: int) -> ReweightedWeights:
        """The posterior of the weights at one sample."""
        if self._fixed:
            return self._fixed[number]
        sample = self.samples[number]
        return self.form_of(number).weights(sample[:-1], sample[-1])

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {"num_samples": len(self.samples), "num_basis": len(self.projected)}

    def components(self, x: Tensor) -> Marginals:
        """Mean and variance (T, t) of the latent function at x (t, d) for every sample."""
        shape = len(self.samples), x.shape[0]
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        row = 4 * 8 * len(self.projected)
        for rows in row_chunks(x.shape[0], row, DEFAULT_BUDGET):
            features = self.form.prepare_features(self.features(x[rows]))
            offset = self.mean(x[rows])
            for number, weights in enumerate(self.weights()):
                found = weights.marginals(features)
                mean[number, rows] = offset + found.mean.to(x.dtype)
                variance[number, rows] = found.variance.to(x.dtype)
        return Marginals(mean, variance)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d), whose distribution is a mixture."""
        return mixture_moments(self.components(x))

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Mixture of T normals for y at every row of x (t, d), each with its own noise.

        For classes the average of T probabilities; with ``probability=median`` the link of the
        mean, as for other posteriors.
        """
        if isinstance(likelihood, Bernoulli):
            if likelihood.probability == "median":
                return super().predictive(x, likelihood)
            parts = self.components(x)
            return likelihood.predictive(*parts).averaged()
        parts = self.components(x)
        noise = self.samples[:, -1:].exp().to(x.dtype)
        return gaussian_mixture(Marginals(parts.mean, parts.variance + noise))

    @property
    def has_own_noise(self) -> bool:
        """As in ``Posterior``: every sample has its own noise variance."""
        return True

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t), each at a random sample.

        Cost: a factorisation per sample drawn, then O(num m) per row.
        """
        total = len(self.samples)
        chosen = torch.randint(total, (num,), generator=generator, device=generator.device)
        drawn = self.projected.new_empty(num, len(self.projected))
        for number in chosen.unique().tolist():
            which = (chosen == number).nonzero().squeeze(1)
            drawn[which] = self._weights_at(number).draw(len(which), generator=generator)

        def blocks(x: Tensor) -> Iterator[Tensor]:
            for rows in row_chunks(len(x), 2 * 8 * len(self.projected), DEFAULT_BUDGET):
                yield drawn.to(x.dtype) @ self.features(x[rows]).mT

        return functions_by_blocks(self, num, blocks, self.mean)


def relevant_functions(samples: Tensor) -> Tensor:
    """Numbers (k,), at least one, of functions with non-negligible prior variance in any sample.

    Args:
        samples (T, m + 1): (log g, log noise).
    """
    logs = samples[:, :-1]
    best = logs.amax(1, keepdim=True)
    counts = (logs > best + math.log(NEGLIGIBLE_VARIANCE)).any(0) & (
        logs > LOG_OF_ZERO_VARIANCE + 1.0
    ).any(0)
    kept = counts.nonzero().squeeze(1)
    return kept if len(kept) else kept.new_zeros(1)
