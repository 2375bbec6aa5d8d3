"""Gaussian process whose latent values and hyperparameters are sampled by Markov chains."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.hyper_position import HyperPosition
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.classification.model import require_arrays, require_targets
from gpx.methods.classification.sampled_posterior import SampledPosterior, prior_factor
from gpx.tensor_checks import check_not_negative, check_share


class SampledGP(Model):
    """Any likelihood, with exact inference in the limit of long Markov chains.

    f = m(X) + L v with L L^T = K and v standard normal a priori. Hyperparameters have independent
    normal priors (of the logarithm, if positive) around their initial values.
    ``optimizer=elliptical_slice`` samples both; until it has, the current values are the only
    sample.

    Args:
        kernel, mean, likelihood: p latents share kernel and mean. Parameters of the likelihood stay
            fixed.
        prior_deviation: standard deviation of the hyper-priors; 0 keeps the hyperparameters fixed,
            as parameters with ``requires_grad=False`` always are.
        jitter: added to K, relative to its mean diagonal; part of the model.

    Attributes:
        whitened (n,) or (n, p): current v.
        centre (k,): means of the hyper-priors of the k sampled hyperparameters.
        samples (S, k), latents (S, n) or (S, n, p): stored states of the chains.
    """

    data_sized = ("whitened", "centre", "samples", "latents")
    kernel: Kernel
    mean: Mean
    likelihood: Likelihood
    whitened: Tensor
    centre: Tensor
    samples: Tensor
    latents: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        prior_deviation: float = 1.0,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        check_not_negative(prior_deviation=prior_deviation)
        check_share(jitter=jitter)
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.prior_deviation = prior_deviation
        self.jitter = jitter
        self.register_data_sized()

    @property
    def place(self) -> HyperPosition:
        """Access to the hyperparameters that are sampled as a vector."""
        return HyperPosition([self.kernel, self.mean])

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also checks that n x n arrays fit into memory."""
        super().check(x)
        require_arrays(self, x, self.likelihood.num_latents)

    def check_optimizer(self, optimizer: object) -> None:
        """As in ``Model``: refuses optimizers that do not sample."""
        if not isinstance(self, getattr(optimizer, "model_type", ())):
            raise ConfigError(
                f"{type(optimizer).__name__} would maximise what SampledGP is to sample: leave out "
                "optimizer= for Markov chains, or take model=LaplaceGP()"
            )

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Centre the hyper-priors at the current values; latents start at the prior mean."""
        require_targets(self.likelihood, y)
        p = self.likelihood.num_latents
        self.centre = self.place.read().to(x.device)
        self.whitened = x.new_zeros((len(y),) if p == 1 else (len(y), p), dtype=torch.float64)
        self.samples, self.latents = self.samples[:0], self.latents[:0]

    def latent(self, x: Tensor) -> Tensor:
        """m(x) + L v at the training inputs x (n, d), with gradients: (n,) or (n, p)."""
        p = self.likelihood.num_latents
        offset = self.mean(x).double()
        centred = prior_factor(self.kernel, x, self.jitter) @ self.whitened.reshape(len(x), p)
        return (offset.unsqueeze(1) + centred).view(self.whitened.shape)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SampledPosterior:
        """The posterior over the stored samples, or of the current values if there are none."""
        posterior = self.new_posterior()
        samples, latents = self.samples, self.latents
        whole = HyperPosition([self.kernel, self.mean], fixed=True)
        now = whole.read().to(x.device)[None]
        if not len(samples):
            samples, latents = now, self.latent(x)[None]
        elif samples.shape[1] < now.shape[1]:  # the others stay fixed
            now = now.repeat(len(samples), 1)
            now[:, whole.learned.to(x.device)] = samples.to(now)
            samples = now
        posterior.keep(x, inputs=x)
        posterior.keep(latents.double(), samples=samples, latents=latents)
        return posterior

    def new_posterior(self) -> SampledPosterior:
        """As in ``Model``."""
        return SampledPosterior(
            self.kernel, self.mean, self.likelihood.num_latents, jitter=self.jitter
        )


@runtime_checkable
class LatentModel(Protocol):
    """What ``LatentLikelihood`` requires of a model."""

    likelihood: Likelihood

    def latent(self, x: Tensor) -> Tensor:
        """Latent values at the training inputs x (n, d)."""


class LatentLikelihood(Objective[LatentModel]):
    """log p(y | f) at the current latents of a sampled model.

    Its posterior mean exceeds the log marginal likelihood by KL(posterior || prior).

    Cost: n^3 / 3 multiply-adds.
    """

    batching = "full"
    kind = "estimate"
    models = (LatentModel,)
    made_for = "SampledGP"

    def check(self, model: LatentModel) -> None:
        """As in ``Objective``; refuses likelihoods with parameters, which chains do not sample."""
        super().check(model)
        likelihood = model.likelihood
        if next(likelihood.parameters(), None) is not None:
            other = "model=LaplaceGP() or " if likelihood.log_concave else ""
            if isinstance(likelihood, Gaussian):
                other = "model=ExactGP() or "
            raise ConfigError(
                f"SampledGP keeps the parameters of a likelihood as they are, and those of "
                f"{class_name(likelihood)} are to be learned: take {other}"
                "model=SVGP(), or likelihood=Bernoulli() for two classes"
            )

    def evidence(
        self, model: LatentModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """log p(y | f) in nats."""
        require_targets(model.likelihood, y)
        value = model.likelihood.log_prob(y.double(), model.latent(x)).sum()
        return Evidence(value, self.kind, {"fit": value})
