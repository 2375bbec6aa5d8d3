"""Posterior process of regression on a re-weighted basis: a mixture over sampled weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.bases.base import Basis
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.models.base import Marginals, Posterior
from gpx.models.finite_mixture import gaussian_mixture, mixture_moments
from gpx.models.reweighted_form import Structure, reweighted_form
from gpx.models.reweighted_weights import ReweightedForm, ReweightedWeights
from gpx.models.sufficient_statistics import SufficientStatistics


class ReweightedPosterior(Posterior):
    """Posterior process of ``Reweighted``: T equally likely (g, noise), one Gaussian process each.

    It needs no training data: the statistics say of the weights all that there is to say, and every
    prediction factorises anew at every sample, because T factors would be T m^2 numbers.

    Attributes:
        gram (m, m), projected (m,), totals (2,): sufficient statistics.
        samples (T, k + 1): (log g, log noise variance).
        frame (m, rank): axes that the prior was turned from, of ``householder`` only.

    Cost: T times that of one factorisation, and of a row of predictions, see ``reweighted_form``.
    Source: Evans thesis, section 5.4 (type-I predictive distribution).
    """

    data_sized = ("gram", "projected", "samples", "frame")
    gram: Tensor
    projected: Tensor
    totals: Tensor
    samples: Tensor
    frame: Tensor

    def __init__(self, basis: Basis, mean: Mean, structure: Structure) -> None:
        super().__init__()
        self.basis = copy.deepcopy(basis).requires_grad_(False)
        self.mean = copy.deepcopy(mean).requires_grad_(False)
        self.structure: Structure = structure
        double = torch.float64
        device = next(self.basis.parameters()).device
        self.register_buffer("gram", torch.zeros(0, 0, dtype=double, device=device))
        self.register_buffer("projected", torch.zeros(0, dtype=double, device=device))
        self.register_buffer("totals", torch.zeros(2, dtype=double, device=device))
        self.register_buffer("samples", torch.zeros(0, 0, dtype=double, device=device))
        self.register_buffer("frame", torch.zeros(0, 0, dtype=double, device=device))
        self._form: ReweightedForm | None = None

    def fill(
        self, statistics: SufficientStatistics, samples: Tensor, frame: Tensor | None = None
    ) -> None:
        """Take statistics, samples (T, k + 1) and, for ``householder``, the frame (m, rank)."""
        self.gram, self.projected = statistics.gram.clone(), statistics.projected.clone()
        count = statistics.squared.new_tensor(float(statistics.num_data))
        self.totals = torch.stack([statistics.squared, count])
        self.samples = samples.clone()
        self.frame = self.frame[:0] if frame is None else frame.clone()
        self._form = None

    @property
    def form(self) -> ReweightedForm:
        """The path from the statistics to the weights."""
        if self._form is None:
            squared, count = self.totals.unbind()
            statistics = SufficientStatistics(self.gram, self.projected, squared, int(count))
            self._form = reweighted_form(statistics, self.structure, self.frame)
        return self._form

    def weights(self) -> Iterator[ReweightedWeights]:
        """The posterior of the weights at each sample in turn."""
        for sample in self.samples:
            yield self.form.weights(sample[:-1], sample[-1])

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {"num_samples": len(self.samples), "num_basis": len(self.projected)}

    @torch.no_grad()
    def components(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d) under every sample: (T, t) each."""
        shape = len(self.samples), x.shape[0]
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        row = 4 * 8 * len(self.projected)
        for rows in row_chunks(x.shape[0], row, DEFAULT_BUDGET):
            features = self.form.at(self.basis(x[rows]))
            offset = self.mean(x[rows])
            for number, weights in enumerate(self.weights()):
                found = weights.marginals(features)
                mean[number, rows] = offset + found.mean.to(x.dtype)
                variance[number, rows] = found.variance.to(x.dtype)
        return Marginals(mean, variance)

    def predict(self, x: Tensor) -> Marginals:
        """First two moments of the latent function at x (t, d); the law is a mixture."""
        return mixture_moments(self.components(x))

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Mixture of T normals for y at every row of x (t, d), each with its own noise."""
        parts = self.components(x)
        noise = self.samples[:, -1:].exp().to(x.dtype)
        return gaussian_mixture(Marginals(parts.mean, parts.variance + noise))

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t), each at a sample drawn anew.

        Cost: a factorisation per sample that was drawn, then O(num m) a row.
        """
        total = len(self.samples)
        chosen = torch.randint(total, (num,), generator=generator, device=generator.device)
        drawn = self.projected.new_empty(num, len(self.projected))
        for number, weights in enumerate(self.weights()):
            which = (chosen == number).nonzero().squeeze(1)
            if len(which):
                drawn[which] = weights.draw(len(which), generator=generator)

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            row = 2 * 8 * len(self.projected)
            parts = [
                drawn.to(x.dtype) @ self.basis(x[rows]).mT
                for rows in row_chunks(x.shape[0], row, DEFAULT_BUDGET)
            ]
            return torch.cat(parts, 1) + self.mean(x)

        return paths

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves between devices, but what the weights follow from stays in float64."""
        kept = {name: getattr(self, name) for name in (*self.data_sized, "totals")}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            setattr(self, name, value.to(getattr(self, name).device))
        self._form = None
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._form = None
