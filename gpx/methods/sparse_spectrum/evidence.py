"""Evidence of regression on learned trigonometric features, and its gradient, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.bases.sufficient_statistics import (
    BYTES_PER_FEATURE,
    FittedWeights,
    SufficientStatistics,
    accumulate_statistics,
    block_bytes,
)
from gpx.constants import LOG_TWO_PI
from gpx.inference.log_density import LogDensityTerms
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import inverse_of_factor, with_gradient
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Kind, Objective
from gpx.methods.base.posterior import Posterior
from gpx.methods.sparse_spectrum.spectrum import LearnedSpectrum

ARRAYS_PER_BLOCK = 4
"""Arrays of the size of a block of features held for its derivatives."""


@torch.no_grad()
def spectral_sums(spectrum: LearnedSpectrum, x: Tensor, residual: Tensor) -> SufficientStatistics:
    """Sums over the rows of x (n, d) and residual (n,), with E Phi^T Phi for the Gram matrix.

    Cost: n m^2 / 2 multiply-adds and the features; memory O(m^2 + block).
    """
    m = spectrum.num_basis
    own = torch.zeros(m, dtype=torch.float64, device=x.device)

    def blocks() -> Iterator[tuple[Tensor, Tensor, None]]:
        for rows in _blocks(spectrum, x):
            mean, variance = spectrum.moments(x[rows])
            if variance is not None:
                own.add_(variance.double().sum(0))
            yield mean.mT, residual[rows], None

    sums = accumulate_statistics(blocks(), m, x)
    return replace(sums, gram=sums.gram + torch.diag(own))


def _blocks(spectrum: LearnedSpectrum, x: Tensor) -> Iterator[slice]:
    row = ARRAYS_PER_BLOCK * spectrum.num_basis * BYTES_PER_FEATURE
    return row_chunks(len(x), row, block_bytes(x.device))


@torch.no_grad()
def fit_spectrum(
    sums: SufficientStatistics, noise: Tensor
) -> tuple[FittedWeights, LogDensityTerms]:
    """The posterior of the weights at a noise variance (), and the terms of the log evidence.

    Cost: m^3 / 3 multiply-adds.
    """
    ones = torch.ones_like(sums.projected)
    fitted = FittedWeights(sums, ones, noise.detach().double())
    constant = fitted.fit.new_full((), -0.5 * sums.num_data * LOG_TWO_PI)
    return fitted, LogDensityTerms(-0.5 * fitted.fit, -0.5 * fitted.log_determinant, constant)


def spectral_evidence(
    spectrum: LearnedSpectrum, x: Tensor, residual: Tensor, noise: Tensor
) -> tuple[Tensor, LogDensityTerms]:
    """Log evidence minus the spectrum's ``penalty``, differentiable; and its terms.

    With G = E Phi^T Phi, c = E Phi^T r, s the noise variance, A = G + s I and w = A^{-1} c:

        2 L = -(r^T r - c^T w) / s - log|A| - (n - m) log s - n log 2 pi
        dL/dG = -(w w^T / s + A^{-1}) / 2        dL/dc = w / s        dL/dr^T r = -1 / (2 s)

    so one pass over blocks of data gives the value, and a second one backpropagates these through
    the features, which are computed twice and never stored.

    Args:
        spectrum: the features.
        x (n, d), residual (n,): inputs and y - m(x).
        noise (): noise variance s.

    Exactness: exact for fixed frequencies; for uncertain ones a lower bound on the log evidence
    under the prior of frequencies (at fixed phases).
    Cost: n m^2 / 2 multiply-adds for the value, n m^2 more with gradient, and O(n m d).
    Memory: O(m^2 + block) beside the data.
    Source: Lazaro-Gredilla et al. 2010; Gal and Turner 2015; the gradient is derived from it.
    """
    sums = spectral_sums(spectrum, x, residual.detach())
    fitted, terms = fit_spectrum(sums, noise)
    n, m = len(x), spectrum.num_basis
    value = terms.total()
    penalty = spectrum.penalty()
    if torch.is_grad_enabled():
        s, w = noise.detach().double(), fitted.mean
        inverse = inverse_of_factor(fitted.factor) / s
        slope = -0.5 * (torch.outer(w, w) / s + inverse)
        unexplained = sums.squared - torch.dot(sums.projected, w)
        of_noise = unexplained / s - torch.dot(w, w) - s * inverse.trace() - (n - m)
        parameters = [p for p in spectrum.parameters() if p.requires_grad]
        of_residual, gradients = _backpropagate(spectrum, parameters, x, residual, slope, w / s, s)
        value = with_gradient(
            value,
            [residual, noise, *parameters],
            [of_residual, (0.5 * of_noise / s).to(noise.dtype), *gradients],
        )
    return value - penalty.double(), terms


def _backpropagate(
    spectrum: LearnedSpectrum,
    parameters: Sequence[Tensor],
    x: Tensor,
    residual: Tensor,
    slope: Tensor,
    weights: Tensor,
    noise: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients by the residual (n,) and parameters, from dL/dG (m, m) and dL/dc (m,)."""
    pair, single = (2.0 * slope).to(x.dtype), weights.to(x.dtype)
    own = slope.diagonal().to(x.dtype)
    of_residual = torch.empty_like(residual)
    total = [torch.zeros_like(p) for p in parameters]
    for rows in _blocks(spectrum, x):
        mean, variance = spectrum.moments(x[rows])
        with torch.no_grad():
            r = residual[rows]
            of_residual[rows] = mean @ single - r / noise.to(x.dtype)
            upstream = [(mean @ pair).addr_(r, single)]
        made = [mean]
        if variance is not None:
            made.append(variance)
            upstream.append(own.expand_as(variance))
        # a part may be constant, and all of them, where parameters are fixed
        live = [pair for pair in zip(made, upstream, strict=True) if pair[0].requires_grad]
        if not live or not parameters:
            continue
        found = torch.autograd.grad(
            [part for part, _ in live],
            parameters,
            [upward for _, upward in live],
            allow_unused=True,
        )
        for sum_, part in zip(total, found, strict=True):
            if part is not None:
                sum_ += part
    return of_residual, total


@runtime_checkable
class SpectralModel(Protocol):
    """What the evidence needs of a model with learned frequencies."""

    mean: Mean
    likelihood: Gaussian
    spectrum: LearnedSpectrum

    def condition(self, x: Tensor, y: Tensor) -> Posterior:
        """The posterior process."""


class SparseSpectrumEvidence(Objective[SpectralModel]):
    """Log marginal likelihood of ``SSGP``, trained over frequencies and hyperparameters.

    The facts at the end of training include ``mnlp``, the mean negative log predictive density of
    the training targets; the gap to that of test targets shows how much the frequencies over-fit.

    Exactness: exact for the kernel with these frequencies.
    Cost and source: ``spectral_evidence``.
    """

    gradient_of_inputs = False
    batching = "full"
    fixed_shapes = True
    kind: ClassVar[Kind] = "exact"
    models = (SpectralModel,)
    made_for = "SSGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self,
        model: SpectralModel,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``LogDensityTerms`` and the penalty."""
        residual = y - model.mean(x)
        noise = model.likelihood.noise_variance
        value, terms = spectral_evidence(model.spectrum, x, residual, noise)
        parts = terms._asdict() | {"penalty": -model.spectrum.penalty()}
        return Evidence(value, self.kind, parts)

    @torch.no_grad()
    def full_evidence(
        self,
        model: SpectralModel,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """``evidence``, with ``mnlp`` of the training targets among its facts."""
        found = self.evidence(model, x, y, generator=generator)
        law = model.condition(x, y).predictive(x, model.likelihood)
        return replace(found, facts={"mnlp": -float(law.log_prob(y).mean())})


class SparseSpectrumELBO(SparseSpectrumEvidence):
    """Lower bound on the log marginal likelihood of ``VSSGP``, minus KL(q || prior).

    Cost and source: ``spectral_evidence``.
    """

    kind: ClassVar[Kind] = "lower_bound"
    made_for = "VSSGP"
