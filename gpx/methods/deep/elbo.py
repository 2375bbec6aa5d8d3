"""The evidence lower bound of models that can sample their latent functions."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.batch import Batch, batches_in_order, resolve_row_noise
from gpx.methods.base.objective import Evidence, Kind, Objective
from gpx.methods.base.posterior import Marginals
from gpx.tensor_checks import check_at_least


@runtime_checkable
class Sampled(Protocol):
    """What ``SampledELBO`` requires of a model."""

    likelihood: Likelihood

    def sample_marginals(
        self, x: Tensor, num: int = 1, *, generator: torch.Generator | None = None
    ) -> Marginals:
        """Gaussian marginals of f given draws of lower layers: (num, B) or (num, B, p) each."""

    @property
    def kl_known(self) -> bool:
        """Whether ``kl`` is exact, not only up to a constant."""

    def sample_latents(
        self, x: Tensor, num: int = 1, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of f at x (B, d) under q: (num, B), or (num, B, p) for p latent functions."""

    def kl(self) -> Tensor:
        """KL(q || p) in nats; ()."""


class SampledELBO(Objective[Sampled]):
    """(n / B) sum over a batch of log p(y | f), averaged over draws of f, minus KL(q || p).

    An unbiased estimate, over uniformly drawn batches and draws of f, of a lower bound on the log
    marginal likelihood. If the divergence is known only up to a constant (Monte Carlo dropout), so
    is the bound, and its kind is "estimate".

    Args:
        num_data: n, the number of training points.
        num_samples: draws of f at each row of a batch.
        expected: draw only the lower layers, and take the expectation over the Gaussian marginals
            of the last layer in closed form or by quadrature. This has less noise; for several
            classes it treats latent functions as independent.

    Raises:
        ConfigError: numbers below one.

    Cost: ``num_samples`` passes through the model, forward and backward.
    """

    batching = "minibatch"
    kind = "unbiased"
    takes_row_noise = True
    elbo = True
    models = (Sampled,)
    made_for = "DeepGP"

    def __init__(self, num_data: int, num_samples: int = 1, *, expected: bool = False) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data, num_samples=num_samples)
        self.total, self.num_samples, self.expected = num_data, num_samples, expected

    def evidence(
        self,
        model: Sampled,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        noise: RowNoise | None = None,
    ) -> Evidence:
        """Evidence with parts ``fit`` (expected log-likelihood) and ``complexity`` (KL).

        Args:
            noise: what is known of the noise of these rows; None: of all rows what the model knows.

        Raises:
            ConfigError: the model knows something of each row, and some came without.
        """
        noise = resolve_row_noise(model, noise, len(x), self.total)
        fit = self._fit(model, Batch(x, y, noise=noise), generator)
        return _evidence(model, fit * (self.total / x.shape[0]))

    def _fit(self, model: Sampled, batch: Batch, generator: torch.Generator | None) -> Tensor:
        likelihood, (x, y, _, noise) = model.likelihood, batch
        if self.expected:
            marginals = model.sample_marginals(x, self.num_samples, generator=generator)
            return likelihood.expected_log_prob_of_rows(y, *marginals, noise).mean(0).sum()
        f = model.sample_latents(x, self.num_samples, generator=generator)
        return likelihood.log_prob_of_rows(y, f, noise).mean(0).sum()

    @torch.no_grad()
    def full_evidence(
        self,
        model: Sampled,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Unbiased estimate of the bound, streamed over all rows."""
        fit = torch.zeros((), dtype=torch.float64, device=x.device)
        for batch in batches_in_order(model, x, y, batch_size):
            fit += self._fit(model, batch, generator).double()
        return _evidence(model, fit)


def _evidence(model: Sampled, fit: Tensor) -> Evidence:
    kl = model.kl()
    kind: Kind = "unbiased" if model.kl_known else "estimate"
    return Evidence(fit - kl, kind, {"fit": fit, "complexity": kl})
