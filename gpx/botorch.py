"""A trained Gaussian process as a model of BoTorch::

    from gpx.botorch import GPXModel

    model = GPXModel(gpx.fit(x, y, "approx=exact", "data.test_fraction=0"))
    acquisition = qLogExpectedImprovement(model, best_f=y.max())

Hyperparameters are those of the run; inputs and targets are in the data's own units. It needs the
extra ``pip install 'gpx-torch[botorch]'``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from linear_operator import to_linear_operator
from torch import Tensor

from gpx.errors import ConfigError, NotAvailable, ShapeError, class_name
from gpx.inference.joint_law import Conditioned, JointLaw
from gpx.inference.sampled_hyperparameters import HyperparameterMixture
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.posterior import Posterior, no_joint_law
from gpx.runs.fit import Fitted
from gpx.runs.predictor import Predictor
from gpx.tensor_checks import check_at_least, own_number

try:
    from botorch.models.model import FantasizeMixin, Model
    from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from gpytorch.distributions import MultivariateNormal
except ImportError as error:
    raise ImportError(
        f"gpx.botorch needs BoTorch ({error}): pip install 'gpx-torch[botorch]'"
    ) from error


ENSEMBLE = 32
"""Samples of the hyperparameters that stand for those of a mixture."""


class GPXModel(Model, FantasizeMixin):
    """A gpx posterior of one target as a model of BoTorch.

    It works with the acquisition functions, samplers and optimisers of BoTorch. Hyperparameters are
    fixed, so do not call ``fit_gpytorch_mll``. For several objectives or constraints make a
    ``botorch.models.ModelList`` with one model each.

    Args:
        trained: result of ``gpx.fit`` or ``gpx.load``, with inputs and targets in the data's own
            units; or a posterior, in its own units.
        likelihood: of a posterior; None: the ``likelihood`` of the posterior, if it has one. Noisy
            predictions and new observations need a Gaussian one.
        ensemble: number of samples of the hyperparameters that stand for those of a mixture, in
            proportion to their weights; cost is proportional to it.

    Of ``fully_bayesian`` runs, which are mixtures of processes, it is a fully Bayesian model of
    BoTorch: posteriors have an axis of ``ensemble`` samples of the hyperparameters in front of that
    of the q inputs, over which acquisition functions average. Further observations, fantasies too,
    change each process and not how much it counts; that ``fitted.condition(x, y)`` does.

    A posterior without a Gaussian joint law (all but exact GPs, those with inducing points, and
    mixtures of these) gives the moments of single points (q = 1), and takes no further
    observations.

    Attributes:
        law: the posterior; of a mixture the joint laws of its processes (``StackedLaw``).

    Raises:
        ConfigError: there are several targets, or it is not a posterior, or ``ensemble`` < 1.
        NotAvailable: the target is transformed or recalibrated.
    """

    num_outputs = 1

    def __init__(
        self,
        trained: Fitted | Predictor | Posterior,
        likelihood: Likelihood | None = None,
        ensemble: int = ENSEMBLE,
    ) -> None:
        super().__init__()
        if isinstance(trained, Fitted):
            trained = trained.model
        scaler = None
        if isinstance(trained, Predictor):
            _require_one_plain_target(trained)
            posterior, likelihood, scaler = trained.posterior, trained.likelihood, trained.scaler
        else:
            posterior = trained
            likelihood = (
                getattr(posterior, "likelihood", None) if likelihood is None else likelihood
            )
        if not isinstance(posterior, Posterior):
            raise ConfigError(
                "GPXModel takes the result of gpx.fit or gpx.load, or a posterior, got a "
                f"{class_name(posterior)}"
            )
        check_at_least(1, ensemble=ensemble)
        self.law, self.likelihood, self.scaler = posterior, likelihood, scaler
        self.noises: Tensor | None = None
        if isinstance(posterior, HyperparameterMixture):
            with suppress(NotAvailable):  # then it serves single points
                self.law, self.noises = posterior.joint_laws(ensemble)
        self._is_ensemble = self._is_fully_bayesian = self.noises is not None

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the observations it was conditioned on, such as fantasies.

        The last axis is that of the samples of the hyperparameters, if it has these.
        """
        if isinstance(self.law, Conditioned):
            return self.law.y.shape[:-1]
        return torch.Size() if self.noises is None else self.noises.shape

    def subset_output(self, idcs: Sequence[int]) -> GPXModel:
        """The model itself, as it has one output."""
        if list(idcs) != [0]:
            raise ShapeError(f"outputs {list(idcs)} were requested, but there is only output 0")
        return self

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Joint distribution of the latent function at groups of inputs, differentiable in them.

        Args:
            X (..., q, d): q inputs in each group.
            output_indices: None or [0].
            observation_noise: True adds the learned noise variance; or noise variances (..., 1, 1)
                or (..., q, 1) to add, in squared units of the target.
            posterior_transform: of BoTorch, applied to the result.

        Returns:
            a ``GPyTorchPosterior`` (..., q, 1); of S samples of the hyperparameters a
            ``GaussianMixturePosterior`` (..., S, q, 1).

        Raises:
            ShapeError: X has another number of columns than the model.
            ConfigError: noise of a likelihood that is not Gaussian.
            NotAvailable: q > 1, or several latent functions, without a joint law.

        Cost: a prediction for every row, plus O(m) for every pair in a group, with m data or
        inducing points.
        """
        if output_indices is not None:
            self.subset_output(output_indices)
        x = self._standardised(self.transform_inputs(X))
        if self._is_ensemble:
            x = x.unsqueeze(-3)
        mean, covariance = self._moments(x)
        covariance = covariance.expand(*mean.shape, mean.shape[-1])
        scale = self._scale
        mean = self._offset + scale * mean
        covariance = scale.square() * covariance
        if isinstance(observation_noise, Tensor):
            noise = observation_noise.to(mean).squeeze(-1)
            noise = (noise.unsqueeze(-2) if self._is_ensemble else noise).expand(mean.shape)
        elif observation_noise:
            noise = (scale.square() * self._noise_at(x)).expand(mean.shape)
        if observation_noise is not False:
            covariance = covariance + torch.diag_embed(noise)
        # an operator, to which draws add a reported jitter if inputs of a group coincide
        joint = to_linear_operator(covariance.to(X))
        found = GPyTorchPosterior(MultivariateNormal(mean.to(X), joint))
        found = found if posterior_transform is None else posterior_transform(found)
        if self._is_ensemble and isinstance(found, GPyTorchPosterior):
            return GaussianMixturePosterior(found.distribution)
        return found

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> GPXModel:
        """The model conditioned on further data, with the same hyperparameters.

        An exact GP becomes the exact GP of all data; the approximate posterior of a sparse GP is
        conditioned exactly.

        Args:
            X (..., n, d): inputs.
            Y (..., n, 1): targets; further leading dimensions are batches. With S samples of the
                hyperparameters and more dimensions than X: (..., S, n, 1), for each its own.
            noise (..., n, 1): noise variances in squared units of the target; by default the
                learned one. Of the same form as Y.

        Returns:
            a model of batch shape ``...``, differentiable in X and Y.

        Raises:
            ShapeError: shapes of X and Y do not match.
            ConfigError: the likelihood is not Gaussian.
            NotAvailable: the posterior has no joint law.

        Cost: every call of ``posterior`` also predicts at all these inputs, and factorises a matrix
        of their number.
        """
        noise = kwargs.pop("noise", None)
        if kwargs:
            raise ConfigError(
                f"condition_on_observations of gpx takes X, Y and noise, got {', '.join(kwargs)}"
            )
        if Y.shape[-1:] != (1,) or Y.shape[-2:-1] != X.shape[-2:-1]:
            raise ShapeError(
                f"Y has shape {tuple(Y.shape)}, expected (..., {X.shape[-2]}, 1) for X of shape "
                f"{tuple(X.shape)}"
            )
        if not isinstance(self.law, JointLaw):
            raise no_joint_law(self.law)
        x = self._standardised(self.transform_inputs(X))
        y = (Y.squeeze(-1).to(x) - self._offset) / self._scale
        if noise is None:
            variances = self._noise.expand(*self._noise.shape[:-1], y.shape[-1])
        else:
            variances = noise.squeeze(-1).to(x) / self._scale.square()
        if self.noises is not None:
            x, y, variances = self._for_each_sample(x, y, variances, noise is not None)
        made = copy.copy(self)
        # a new dictionary of modules, as a shallow copy shares that of this model
        made._modules = {**self._modules, "law": Conditioned.of(self.law, x, y, variances)}
        return made

    def _for_each_sample(
        self, x: Tensor, y: Tensor, variances: Tensor, given: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., 1, n, d), y and noise (..., S, n) of observations x (..., n, d)."""
        assert self.noises is not None
        count = len(self.noises)
        if y.ndim < x.ndim:  # the same of all samples
            y = y.unsqueeze(-2)
            variances = variances.unsqueeze(-2) if given else variances
        elif y.shape[-2] != count:
            raise ShapeError(
                f"Y has {y.shape[-2]} targets at each input, in its third axis from the end, and "
                f"the model has {count} samples of the hyperparameters"
            )
        shape = torch.broadcast_shapes(y.shape, (count, 1))
        return x.unsqueeze(-3), y.expand(shape), variances

    # --- in standardised units -------------------------------------------------------------------

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (..., q) and covariance (..., q, q) of f at x (..., q, d)."""
        with suppress(NotAvailable):
            if isinstance(self.law, JointLaw):
                there = self.law.project(x)
                return there.mean, self.law.covariance_between(there)
        if x.shape[-2] != 1:
            raise no_joint_law(self.law)
        found = self.law.predict(x.reshape(-1, x.shape[-1]))
        if found.mean.ndim > 1:
            raise NotAvailable(f"{class_name(self.law)} has several latent functions, BoTorch one")
        return found.mean.reshape(x.shape[:-1]), found.variance.reshape(*x.shape[:-1], 1)

    def _noise_at(self, x: Tensor) -> Tensor:
        """Learned noise variance at x (..., q, d): (), or (..., q) of a posterior with its own."""
        learned = self._noise
        if self.noises is not None or not self.law.has_own_noise:
            return learned
        assert self.likelihood is not None  # it is Gaussian
        rows = x.reshape(-1, x.shape[-1])
        total = self.law.predictive(rows, self.likelihood).variance
        return (total - self.law.predict(rows).variance).reshape(x.shape[:-1])

    def _standardised(self, x: Tensor) -> Tensor:
        width = self.law.num_inputs
        if self.scaler is not None:
            width = len(self.scaler.input_mean)
        if x.ndim < 2 or (width is not None and x.shape[-1] != width):
            raise ShapeError(
                f"inputs have shape {tuple(x.shape)}, expected (..., q, {width or 'd'})"
            )
        if self.scaler is not None:
            x = self.scaler.transform_inputs(x)
        return x.to(own_number(self.law))

    @property
    def _scale(self) -> Tensor:
        return (
            own_number(self.law).new_ones(()) if self.scaler is None else self.scaler.target_scale
        )

    @property
    def _offset(self) -> Tensor:
        return (
            own_number(self.law).new_zeros(()) if self.scaler is None else self.scaler.target_mean
        )

    @property
    def _noise(self) -> Tensor:
        """Learned noise variance (); (S, 1) of S samples of the hyperparameters."""
        if self.noises is not None:
            return self.noises.unsqueeze(-1)
        if not isinstance(self.likelihood, Gaussian):
            known = "none" if self.likelihood is None else class_name(self.likelihood)
            raise ConfigError(
                f"observation noise needs likelihood=Gaussian(), and this model has {known}"
            )
        return self.likelihood.noise_variance.detach()


def _require_one_plain_target(trained: Predictor) -> None:
    if trained.target_names:
        raise ConfigError(
            f"GPXModel takes one target, and this run has {len(trained.target_names)}: make a "
            "botorch.models.ModelList of runs with one target each"
        )
    if trained.target_transform is not None or trained.calibration is not None:
        what = "a target transform" if trained.calibration is None else "recalibration"
        raise NotAvailable(f"GPXModel needs Gaussian predictions, and this run has {what}")
