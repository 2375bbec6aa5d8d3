"""Models of regression whose hyperparameters are sampled."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite, class_name
from gpx.inference.sampled_hyperparameters.posterior import HyperparameterMixture
from gpx.inference.sampled_hyperparameters.stacked import StackedProcesses
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.hyper_position import HyperPosition
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.posterior import Posterior


class SampledHyperparameters(Model):
    """A model of regression whose posterior is averaged over samples of the hyperparameters.

    It is placed before the model that it changes: ``class FullyBayesianGP(SampledHyperparameters,
    ExactGP)``. That model must take no part in training but through its evidence and ``condition``:
    parameters other than those of ``kernel``, ``mean`` and ``likelihood`` stay as initialised.
    ``optimizer=hamiltonian`` samples; until it has, the current values are the only sample.

    Attributes:
        samples (S, k): stored states of the chains, as in ``HyperPosition``.
        made_with: all hyperparameters as in ``HyperPosition`` when the model was made, before data
            changed them: centres of priors.
    """

    samples: Tensor
    made_with: Tensor
    certifiable = False

    def _register_samples(self) -> None:
        """Called at the end of a constructor."""
        self.register_buffer("samples", torch.zeros(0))
        self.register_buffer("made_with", self.hyper_position(fixed=True).read())

    def hyper_position(self, *, fixed: bool = False) -> HyperPosition:
        """Access to the hyperparameters that are sampled as a vector; ``fixed``: to all."""
        parts = self.hyperparameters()
        assert parts is not None  # a model of regression has a kernel, a mean and a likelihood
        return HyperPosition(parts, fixed=fixed)

    def check_optimizer(self, optimizer: object) -> None:
        """As in ``Model``: refuses optimizers that do not sample."""
        if not isinstance(self, getattr(optimizer, "model_type", ())):
            raise ConfigError(
                f"{type(optimizer).__name__} would maximise what {class_name(self)} is to sample: "
                "leave out optimizer= for Markov chains, or take model=ExactGP() or SGPR()"
            )

    def log_likelihoods(
        self, objective: Objective, place: HyperPosition, positions: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """log p(y | u) (C,) at positions u (C, k), and its gradients (C, k).

        It is -inf, with a gradient of zero, where the covariance has no Cholesky factor. The
        model's hyperparameters may change.

        Cost: an evidence of the objective, with its gradient, at each.
        """
        values = positions.new_full((len(positions),), -math.inf)
        gradients = torch.zeros_like(positions)
        for chain, _ in enumerate(place.visit(positions)):
            with torch.enable_grad():
                try:
                    evidence = objective.evidence(self, x, y).value
                except NotPositiveDefinite:
                    continue
                gradients[chain] = place.gradient(evidence)
            values[chain] = evidence.detach()
        return values, gradients

    def condition_once(self, x: Tensor, y: Tensor) -> Posterior:
        """The posterior given x (n, d) and y (n,) at the current hyperparameters."""
        return super().condition(x, y)  # type: ignore[safe-super]

    def log_density_once(self, x: Tensor, y: Tensor) -> Tensor | None:
        """log p(y | u) () that the chains sample from, at the current hyperparameters.

        None, the default: the exact one, so that the posterior's predictions of further rows have
        the density of these rows given those before them.
        """
        return None

    def condition_all(self, samples: Tensor, x: Tensor, y: Tensor) -> StackedProcesses | None:
        """The posteriors at samples (S, k) as one batch; None, the default: there is none.

        The model's row noise holds for x (n, d) and y (n,).
        """
        return None

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> HyperparameterMixture:
        """The posterior averaged over the samples, or of the current values if there are none."""
        samples, whole = self.samples, self.hyper_position(fixed=True)
        now = whole.read().to(x.device)[None]
        if len(samples):  # hyperparameters that are not sampled stay as they are
            if samples.shape[1] != int(whole.learned.sum()):
                raise ConfigError(
                    f"{class_name(self)} has samples of {samples.shape[1]} hyperparameters, and "
                    f"{int(whole.learned.sum())} are learned: sample again, or fix the same ones"
                )
            now = now.repeat(len(samples), 1)
            now[:, whole.learned.to(x.device)] = samples.to(now)
        posterior = self.new_posterior()
        noise = None if self.row_noise is None else RowNoise(*self.row_noise)
        posterior.fill(x, y, now, noise)
        return posterior

    def new_posterior(self) -> HyperparameterMixture:
        """As in ``Model``."""
        return HyperparameterMixture(self)
