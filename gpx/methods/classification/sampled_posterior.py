"""Posterior process from samples of latents and hyperparameters: an equally weighted mixture."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from gpx.backends import row_chunks
from gpx.errors import NotPositiveDefinite
from gpx.inference.finite_mixture import mixture_moments
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood, class_law
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.linalg import cholesky
from gpx.means.base import Mean
from gpx.methods.base.hyper_position import HyperPosition
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.classification.prior_matrix import prior_matrix, prior_variances
from gpx.sampling import SHARED, Frequencies, prior_functions


class _Part(NamedTuple):
    """One component: a Gaussian process conditioned on its values at the data."""

    kernel: Kernel
    mean: Mean
    factor: Tensor  # (n, n), of K
    weights: Tensor  # K^-1 (f - m), (n,) or (n, p)


class SampledPosterior(Posterior):
    """An equally weighted mixture of Gaussian processes, one for each sample.

    A component is the prior at the sampled hyperparameters conditioned on the sampled latents f:
    mean m + k K^-1 (f - m), variance k** - k K^-1 k^T.

    Args:
        kernel, mean: copied.
        num_latents: p.
        jitter: added to K, relative to its mean diagonal.

    Attributes:
        inputs (n, d), samples (S, k), latents (S, n) or (S, n, p): X, hyperparameters as in
            ``HyperPosition``, those that stay fixed too, f at X.

    Cost: n^3 / 3 for every sample with hyperparameters other than the sample before it, and n^2
    per sample and row.
    """

    data_sized = ("inputs", "samples", "latents")
    inputs: Tensor
    samples: Tensor
    latents: Tensor

    def __init__(
        self, kernel: Kernel, mean: Mean, num_latents: int = 1, jitter: float = 1e-6
    ) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.num_latents = num_latents
        self.jitter = jitter
        self.register_data_sized()

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {"num_samples": len(self.samples)}

    def _parts(self, chosen: Tensor | None = None) -> Iterator[_Part]:
        """The component of every sample, or of the samples with indices ``chosen``."""
        kernel, mean = copy.deepcopy(self.kernel), copy.deepcopy(self.mean)
        place, before, factor = HyperPosition([kernel, mean], fixed=True), None, None
        for number in range(len(self.samples)) if chosen is None else chosen.tolist():
            position = self.samples[number].double()
            if before is None or factor is None or not torch.equal(position, before):
                place.move(position)
                factor = prior_factor(kernel, self.inputs, self.jitter)
                offset, before = mean(self.inputs).double().clone(), position
            latent = self.latents[number].double()
            centred = latent.reshape(len(latent), -1) - offset.unsqueeze(1)
            weights = torch.cholesky_solve(centred, factor).view(latent.shape)
            yield _Part(kernel, mean, factor, weights)

    def components(self, x: Tensor) -> Marginals:
        """Mean and variance at x (t, d) of every sample: (S, t), or (S, t, p) for p latents."""
        p, n = self.num_latents, self.inputs.shape[0]
        shape = (len(self.samples), x.shape[0], *(() if p == 1 else (p,)))
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        for number, part in enumerate(self._parts()):
            for rows in row_chunks(x.shape[0], 3 * 8 * n):
                cross = prior_matrix(part.kernel, x[rows], self.inputs)
                half = torch.linalg.solve_triangular(part.factor, cross.mT, upper=False)
                left = prior_variances(part.kernel, x[rows]) - half.square().sum(0)
                offset = part.mean(x[rows]).double()
                if p > 1:
                    left, offset = left.unsqueeze(1).expand(-1, p), offset.unsqueeze(1)
                mean[number, rows] = (offset + cross @ part.weights).to(x.dtype)
                variance[number, rows] = left.clamp_min(0.0).to(x.dtype)
        return Marginals(mean, variance)

    def predict(self, x: Tensor) -> Marginals:
        """As in ``Posterior``: mean and variance of the mixture."""
        return mixture_moments(self.components(x))

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """As in ``Posterior``: class probabilities are averages over the samples.

        For counts the latent mixture is replaced by a normal one of the same mean and variance.
        """
        if isinstance(likelihood, Bernoulli) and likelihood.probability == "mean":
            return likelihood.predictive(*self.components(x)).averaged()
        if likelihood.task == "multiclass":
            total = x.new_zeros(x.shape[0], self.num_latents)
            for mean, variance in zip(*self.components(x), strict=True):
                part = likelihood.predictive(mean, variance)
                assert isinstance(part, Categorical)
                total += part.probs
            return class_law(total / total.sum(1, keepdim=True))
        return super().predictive(x, likelihood)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t) or (num, t, p), each of a randomly drawn sample.

        Pathwise conditioning: a prior function g from random Fourier features plus the update
        k K^-1 (f - g(X)).

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        p, (n, num_inputs) = self.num_latents, self.inputs.shape
        drawn = torch.randint(
            len(self.samples), (num,), generator=generator, device=generator.device
        )
        order = drawn.argsort(stable=True)  # neighbours with equal hyperparameters share a factor
        made: dict[int, tuple[Kernel, Mean, Callable[[Tensor], Tensor], Tensor]] = {}
        for place, part in zip(order.tolist(), self._parts(drawn[order]), strict=True):
            prior = prior_functions(
                part.kernel, p, num_inputs, generator=generator, frequencies=frequencies
            )
            start = prior(self.inputs).double().mT
            own = part.weights.reshape(n, p) - torch.cholesky_solve(start, part.factor)
            kernel, mean = copy.deepcopy(part.kernel), copy.deepcopy(part.mean)
            made[place] = kernel, mean, prior, own.to(self.inputs.dtype)

        def paths(x: Tensor) -> Tensor:
            found = torch.stack(
                [
                    prior(x).mT + kernel.evaluate(x, self.inputs) @ own + mean(x).unsqueeze(1)
                    for kernel, mean, prior, own in (made[place] for place in range(num))
                ]
            )
            return found.squeeze(2) if p == 1 else found

        return paths


def prior_factor(kernel: Kernel, x: Tensor, jitter: float) -> Tensor:
    """Lower Cholesky factor (n, n) of K plus ``jitter`` times its mean diagonal, float64.

    Raises:
        NotPositiveDefinite: no factor even with a hundred times that jitter.
    """
    factors, missing = prior_factors(prior_matrix(kernel, x)[None], jitter)
    if missing:
        raise missing[0]
    return factors[0]


def prior_factors(kernels: Tensor, jitter: float) -> tuple[Tensor, dict[int, NotPositiveDefinite]]:
    """``prior_factor`` of C kernel matrices (C, n, n) at once.

    Returns:
        the factors (C, n, n), and the errors of those that do not exist, zero here.
    """
    name = f"the kernel matrix of {kernels.shape[-1]} training points"
    try:
        return cholesky(kernels, name=name, ladder=(jitter,))[0], {}
    except NotPositiveDefinite:
        # laid out like the factors of a batch, so that products have the same bits
        factors, missing = torch.zeros_like(kernels).mT, {}
    ladder = (jitter, 10.0 * jitter, 100.0 * jitter)  # of each its own
    for row, kernel in enumerate(kernels):
        try:
            factors[row], _ = cholesky(kernel, name=name, ladder=ladder, hint="a larger jitter")
        except NotPositiveDefinite as error:
            missing[row] = error
    return factors, missing
