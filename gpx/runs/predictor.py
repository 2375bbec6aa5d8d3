"""A trained model: predictions in the data's own units."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpx.calibration import Recalibration
from gpx.data import Standardiser
from gpx.data.columns.coding import Coding
from gpx.data.columns.frame import Frame
from gpx.data.labels import Label
from gpx.data.target_transform import TargetTransform, TransformedLaw
from gpx.errors import ConfigError, NotAvailable
from gpx.likelihoods import Gaussian, Likelihood, target_marginals
from gpx.likelihoods.base import class_numbers, is_classification
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.models import Posterior
from gpx.runs.arrays import coded_inputs
from gpx.runs.function_draws import (
    drawn_functions,
    drawn_targets,
    noise_of_functions,
    require_known_targets,
)
from gpx.runs.further_rows import conditionable_likelihood, row_noise, standardised_targets
from gpx.runs.gaps import averaged_over_gaps
from gpx.runs.hyperparameters import Hyperparameters, hyperparameters_of, shown
from gpx.runs.left_out import LeftOutRows, left_out_rows
from gpx.runs.prediction import ClassPrediction, Prediction, class_summary, summary, warn_of_tails
from gpx.tensor_checks import own_number

MIN_SCALE, MAX_SCALE = 1e-150, 1e150
"""Deviations of targets between which variances in their unit are numbers of float64."""


@dataclass(eq=False, repr=False)
class Predictor:
    """Posterior, likelihood and data scaling of one run.

    Attributes:
        posterior: latent process in standardised units.
        likelihood: p(y | f).
        scaler: standardisation of inputs and target.
        input_names: of the inputs of the model, in training order.
        target_name: name of the target.
        labels: for classes, the data's own label of each, ascending; otherwise empty.
        target_names: for several outputs, the name of each; otherwise empty.
        calibration: recalibration of predictions, fitted on held-out rows; None: none.
        coding: how inputs are computed from the columns of a table; None: they are its columns.
        target_transform: the posterior models the transformed target; None: no transform.
    """

    posterior: Posterior
    likelihood: Likelihood
    scaler: Standardiser
    input_names: tuple[str, ...]
    target_name: str
    labels: tuple[Label, ...] = ()
    target_names: tuple[str, ...] = ()
    calibration: Recalibration | None = None
    coding: Coding | None = None
    target_transform: TargetTransform | None = None

    def __repr__(self) -> str:
        inputs = f"{len(self.input_names)} inputs" if len(self.input_names) > 1 else "1 input"
        return (
            f"Predictor({type(self.posterior).__name__} of {self.target_name!r} given {inputs}: "
            f"{shown(self.hyperparameters)})"
        )

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Learned hyperparameters of kernel, mean and likelihood; see ``hyperparameters_of``.

        They are in units of the standardised inputs and target: multiply a lengthscale by
        ``scaler.input_scale`` for the input's own unit.
        """
        return hyperparameters_of(self.posterior, self.likelihood)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it predicts from, as in the training table."""
        return self.input_names if self.coding is None else self.coding.names

    def distribution(
        self, x: Tensor, noise: RowNoise | None = None
    ) -> torch.distributions.Distribution:
        """Predictive distribution of standardised y at standardised inputs (n, d).

        Args:
            noise: known noise of each row, standardised.

        Raises:
            ConfigError: known noise with a likelihood that is not Gaussian, or with recalibration,
                whose factor is not meant for it.
        """
        if self.calibration is not None and noise is not None and noise.known.any():
            raise ConfigError(
                "noise= cannot be used with recalibrated predictions, whose factor would scale it, "
                "too: leave it out, or train without calibration="
            )
        found = self.modelled(x, noise)
        return self.in_targets(found if self.calibration is None else self.calibration(found))

    @torch.no_grad()
    def modelled(
        self, x: Tensor, noise: RowNoise | None = None
    ) -> torch.distributions.Distribution:
        """Distribution of the transformed, standardised target before recalibration.

        Arguments and errors as for ``distribution``, which also applies recalibration and inverts
        the transform.
        """
        likelihood = self.likelihood
        normal = isinstance(likelihood, (Gaussian, NoisyOutputs))
        if noise is not None and not normal and noise.known.any():
            raise ConfigError(
                "known noise adds to that of likelihood=Gaussian() or GaussianOutputs() only"
            )

        def law(x: Tensor, rows: Tensor | None) -> torch.distributions.Distribution:
            # with other likelihoods weights only matter in training
            if noise is None or not isinstance(likelihood, (Gaussian, NoisyOutputs)):
                return self.posterior.predictive(x, likelihood)
            known = noise if rows is None else noise.of(rows.to(noise.known.device))
            return self.posterior.predictive_of_rows(x, likelihood, known)

        return averaged_over_gaps(law, x, self.coding, self.scaler)

    def predict(self, inputs: ArrayLike | Frame, noise: ArrayLike | None = None) -> Prediction:
        """Mean, standard deviation and 95 % interval of y in the data's own units.

        Args:
            inputs (n, d): in the data's own units, columns as in training, including columns of
                texts and dates; (d,) is one row, and (n,) is n rows for a model of one input. If
                training had column names, columns of a data frame are taken by name and others are
                ignored. Predictions for rows with missing values are averaged over values that
                these may have (``gpx.runs.gaps``). A model of images takes images too: (n, h, w),
                or with channels first or last.
            noise (n,): known noise variance of each row, added to the learned one, in the squared
                unit of the target; (n, p) for p targets; None: none.

        Raises:
            ShapeError: another number of columns than in training, or of variances than of rows.
            DTypeError, DataError: not real numbers, not finite, or a column is missing.
            ConfigError: the target is a class (see ``predict_classes``), or known noise with
                recalibration.

        Warns of means of counts, or of targets whose logarithm is modelled, that lie above their
        interval.
        """
        if is_classification(self.likelihood.task):
            raise ConfigError(
                f"{self.target_name} is a class and has no mean: call predict_classes"
            )
        x = self._standardised(inputs)
        distribution = target_marginals(self.distribution(x, self._row_noise(noise, x)))
        predicted = summary(distribution, self.scaler)
        warn_of_tails(predicted, 1.0 if self.likelihood.task == "count" else 0.0)
        return predicted

    def condition(
        self, inputs: ArrayLike | Frame, targets: ArrayLike, noise: ArrayLike | None = None
    ) -> Predictor:
        """A copy of the model conditioned on further rows, with the same hyperparameters.

        Nothing is trained. An exact Gaussian process is conditioned on all rows; a model with
        inducing points is conditioned exactly on the new rows; a model of nearest neighbours may
        use the new rows as neighbours. The scaling stays that of the training rows.

        Args:
            inputs (m, d): as for ``predict``.
            targets (m,), or (m, p): in the data's own unit; NaN where one of several is missing.
                For one row also a number, or (p,).
            noise (m,), or (m, p): known noise variances, as for ``predict``.

        Returns:
            a predictor, which can be conditioned again.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``, also for targets.
            ConfigError: noise with a target transform.
            NotAvailable: the noise is not Gaussian, predictions are recalibrated, or the posterior
                cannot be conditioned on rows (with several targets ``CoregionalGP`` and
                ``IndependentGP`` can).

        Cost: n^2 m + m^3 for an exact Gaussian process, M^2 m + m^3 with M inducing points.
        """
        x = self._standardised(inputs)
        likelihood = conditionable_likelihood(self.likelihood, self.calibration)
        y = standardised_targets(
            targets, len(x), self.scaler, self.target_transform, self.target_names
        )
        made = copy.copy(self)
        made.posterior = self.posterior.with_observations(
            x, y.to(x), likelihood, self._row_noise(noise, x)
        )
        return made

    def leave_one_out(self) -> LeftOutRows:
        """Prediction of every training row from all others, with the learned hyperparameters.

        Errors and cost are those of ``left_out_rows``.

        Raises:
            NotAvailable: see there.
        """
        return left_out_rows(
            self.posterior, self.scaler, self.calibration is None and self.target_transform is None
        )

    def _row_noise(self, noise: ArrayLike | None, x: Tensor) -> RowNoise | None:
        return None if noise is None else row_noise(noise, x, self.scaler, self.target_transform)

    def predict_classes(self, inputs: ArrayLike | Frame) -> ClassPrediction:
        """Most probable label and the probability of every class.

        Args:
            inputs (n, d): as for ``predict``.

        Raises:
            ShapeError: the number of columns differs from training.
            DTypeError, DataError: not real numbers, or not finite.
            ConfigError: the target is a number.
        """
        if not is_classification(self.likelihood.task):
            raise ConfigError(f"{self.target_name} is a number, not a class: call predict")
        law = self.distribution(self._standardised(inputs))
        return class_summary(law, self.labels)

    @torch.no_grad()
    def latent(self, inputs: ArrayLike | Frame) -> Prediction:
        """Prediction of the latent function f, without noise: mean, deviation and 95 % interval.

        For real targets f is y without noise, in the data's own units. For counts it is the
        logarithm of the rate; for classes and proportions the values that the likelihood turns into
        probabilities, (n, C) for C > 2 classes without an order; for other likelihoods of your own
        what they take as f. The interval is that of a normal
        distribution, transformed if the target is. Recalibration does not change f. Rows with
        missing values are averaged as in ``predict``.

        Args:
            inputs (n, d): as for ``predict``.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
        """

        def law(x: Tensor, _: Tensor | None) -> torch.distributions.Distribution:
            mean, variance = self.posterior.outputs(x, self.likelihood)
            return torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)

        found = averaged_over_gaps(law, self._standardised(inputs), self.coding, self.scaler)
        return summary(self.in_targets(found), self.scaler)

    def in_targets(self, law: torch.distributions.Distribution) -> torch.distributions.Distribution:
        """The distribution of the standardised target, given that of the transformed target."""
        if self.target_transform is None:
            return law
        scale = float(self.scaler.target_mean), float(self.scaler.target_scale)
        return TransformedLaw(law, self.target_transform, *scale)

    @torch.no_grad()
    def covariance(
        self, inputs: ArrayLike | Frame, *, targets: bool = False
    ) -> NDArray[np.float64]:
        """Joint covariance (n, n) of the latent function at the inputs, in squared units of y.

        Args:
            inputs (n, d): as for ``predict``.
            targets: covariance of y instead, with noise on the diagonal.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
            ConfigError: the target is a class, a count, a proportion or positive, is transformed,
                or there are several.
            NotAvailable: the posterior has no joint covariance in closed form; or ``targets`` with
                recalibration, which is of the distribution of each target alone.
        """
        if targets and self.calibration is not None:
            raise NotAvailable(
                "the joint covariance of targets is not known with recalibration; take that of the "
                "function with targets=False, or use predict for the deviation of each target"
            )
        if self.likelihood.task != "regression":
            raise ConfigError(
                f"a covariance needs a real target, and {self.target_name} is a class, a count, "
                "a proportion or positive"
            )
        if self.target_names or self.target_transform is not None:
            why = "has several" if self.target_names else "transforms it"
            raise ConfigError(f"a covariance needs one plain target, and this model {why}")
        x = self._standardised(inputs)
        found = self.posterior.joint_covariance(x).double()
        if targets:
            found.diagonal().copy_(self.posterior.predictive(x, self.likelihood).variance)
        scale = self.scaler.target_scale.to(found.device)
        if not MIN_SCALE < float(scale) < MAX_SCALE:
            raise ConfigError(
                f"the targets' deviation is {float(scale):g}, whose square is beyond the numbers "
                "of float64, and so is a covariance: fit targets in another unit; std of "
                "predictions is in range"
            )
        return (found * scale.square()).cpu().numpy()

    @torch.no_grad()
    def sample(
        self,
        inputs: ArrayLike | Frame,
        num: int = 1,
        *,
        targets: bool = False,
        seed: int = 0,
        jointly: bool | None = None,
    ) -> NDArray[Any]:
        """Draws from the posterior: functions, or targets given these functions.

        A seed determines the functions at all inputs, so that a curve may be drawn piece by piece.
        Missing values are filled in by the mean; there is no averaging as in ``predict``.

        Args:
            inputs (n, d): as for ``predict``.
            num: number of draws.
            targets: False: draws of the latent function, in the units of ``latent``. True: draws of
                y, a function plus noise at every row; labels for classes.
            seed: of the draws; the noise of targets also depends on the rows.
            jointly: draw from the joint normal distribution at these rows, which is exact and works
                with any kernel, at a cost of n^3. The functions are then defined at these rows
                only: the same seed gives other functions at other rows. None: so, with a warning,
                for a kernel without random Fourier features at up to 5,000 rows; False: never.

        Returns:
            (num, n), or (num, n, p) for p outputs or latent functions.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
            ConfigError: an invalid ``num`` or ``seed``, or a kernel without random Fourier features
                to draw functions from, where draws are not joint (``NoSpectrum``).
            NotAvailable: ``targets`` with recalibration or with noise that differs between experts,
                where the distribution of y given a function is not known; or ``jointly`` without a
                joint distribution in closed form.
        """
        if targets:
            require_known_targets(self.posterior, self.likelihood, self.calibration)
        x = self._standardised(inputs)
        f = drawn_functions(self.posterior, x, num, seed=seed, jointly=jointly)
        if not targets:
            known, _ = self.likelihood.outputs(f, torch.zeros_like(f))
            return self.original_draws(known.double().cpu()).numpy()
        noise = noise_of_functions(self.posterior, num, seed=seed)
        y = drawn_targets(self.likelihood, f, seed=seed, noise=noise)
        if not self.labels:
            return self.original_draws(y).numpy()
        return np.array(self.labels)[class_numbers(y, self.likelihood.task).numpy()]

    def original_draws(self, values: Tensor) -> Tensor:
        """Drawn values in the units of the posterior, converted to the data's own units."""
        if self.target_transform is not None:
            return self.target_transform.inverse(values)
        return self.scaler.original_mean(values)

    @property
    def table_coding(self) -> Coding:
        """How the inputs are computed from the columns of a table."""
        return self.coding or Coding.of_numbers(self.columns)

    def coded(self, inputs: ArrayLike | Frame) -> NDArray[np.float64]:
        """The model's inputs (n, d), not standardised, from the columns of a table.

        Args:
            inputs: as for ``predict``, or a ``Frame`` of ``columns`` in their order.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
        """
        return coded_inputs(inputs, self.columns, self.coding)

    def _standardised(self, inputs: ArrayLike | Frame) -> Tensor:
        return self.placed(self.scaler.transform_inputs(torch.from_numpy(self.coded(inputs))))

    def placed(self, x: Tensor) -> Tensor:
        """Standardised inputs x (n, d) on the device and in the dtype of the posterior."""
        return x.to(own_number(self.posterior))
