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
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian, Likelihood, target_marginals
from gpx.likelihoods.base import class_numbers, is_classification
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.models import Posterior
from gpx.runs.arrays import coded_inputs
from gpx.runs.function_draws import drawn_functions, drawn_targets, require_law_given_function
from gpx.runs.further_rows import conditionable, row_noise, standardised_targets
from gpx.runs.gaps import over_gaps
from gpx.runs.hyperparameters import Hyperparameters, hyperparameters_of, shown
from gpx.runs.left_out import LeftOutRows, left_out_rows
from gpx.runs.prediction import ClassPrediction, Prediction, class_summary, summary


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
        calibration: what its predictions go through, fitted on held-out rows.
        coding: how the inputs are made of the columns of a table; None: they are its columns.
        target_transform: what the posterior sees the target through; None: nothing.
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
        """What was learned of kernel, mean and likelihood; see ``hyperparameters_of``.

        In units of the standardised inputs and target: a lengthscale times
        ``scaler.input_scale`` is in the input's own unit.
        """
        return hyperparameters_of(self.posterior, self.likelihood)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it predicts from: those of the table it was trained on."""
        return self.input_names if self.coding is None else self.coding.names

    def distribution(
        self, x: Tensor, noise: RowNoise | None = None
    ) -> torch.distributions.Distribution:
        """Predictive distribution of standardised y at standardised inputs (n, d).

        Args:
            noise: what is known of the noise of each row, standardised.

        Raises:
            ConfigError: known noise under another likelihood than a Gaussian.
        """
        found = self.modelled(x, noise)
        return self.in_targets(found if self.calibration is None else self.calibration(found))

    @torch.no_grad()
    def modelled(
        self, x: Tensor, noise: RowNoise | None = None
    ) -> torch.distributions.Distribution:
        """Law of what the posterior sees the target as, which is not recalibrated.

        Arguments and errors as for ``distribution``, which is this law, recalibrated, of y.
        """
        likelihood = self.likelihood
        if noise is not None and not isinstance(likelihood, Gaussian) and noise.known.any():
            raise ConfigError("known noise adds to that of likelihood=Gaussian() only")

        def law(x: Tensor, rows: Tensor | None) -> torch.distributions.Distribution:
            # under other noise weights say how much rows teach, not how they scatter
            if noise is None or not isinstance(likelihood, (Gaussian, NoisyOutputs)):
                return self.posterior.predictive(x, likelihood)
            known = noise if rows is None else noise.of(rows.to(noise.known.device))
            return self.posterior.predictive_of_rows(x, likelihood, known)

        return over_gaps(law, x, self.coding, self.scaler)

    def predict(self, inputs: ArrayLike | Frame, noise: ArrayLike | None = None) -> Prediction:
        """Mean, standard deviation and 95 % interval of y in the data's own units.

        Args:
            inputs (n, d): in the data's own units, columns as in training; (d,) is one row, and
                (n,) n rows where the model has one input. Columns of a data frame are taken by
                name, whatever their order, and others are ignored, where training knew names.
                Columns of texts and dates hold these. Rows that lack values of columns which few
                training rows lack are averaged over values that these may have had
                (``gpx.runs.gaps``). A model of images takes images too,
                (n, h, w), or with channels before or behind.
            noise (n,): known variances of the noise of each row beside that which was learned, in
                the squared unit of the target; None: none.

        Raises:
            ShapeError: the number of columns differs from training, or that of variances from rows.
            DTypeError, DataError: not real numbers, not finite, or a column that is missing.
            ConfigError: the target is a class; see ``predict_classes``.
        """
        if is_classification(self.likelihood.task):
            raise ConfigError(
                f"{self.target_name} is a class, which has no mean: call predict_classes"
            )
        x = self._standardised(inputs)
        distribution = target_marginals(self.distribution(x, self._row_noise(noise, x)))
        return summary(distribution, self.scaler)

    def condition(
        self, inputs: ArrayLike | Frame, targets: ArrayLike, noise: ArrayLike | None = None
    ) -> Predictor:
        """A model that knows these rows as well, at the hyperparameters of this one.

        Nothing is trained, and this model stays as it is. An exact Gaussian process becomes that of
        all rows; one with inducing points is conditioned exactly on the rows, wherever these lie;
        one that looks at the nearest rows may find these. Scaling stays that of the training rows.

        Args:
            inputs (m, d): as for ``predict``.
            targets (m,), or (m, p): in the data's own unit; NaN where one of several is missing.
            noise (m,): known variances of their noise, as for ``predict``.

        Returns:
            a model of the same methods, which can be pickled and conditioned again.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``, of targets too.
            ConfigError: noise beside a transform of the targets, or of several.
            NotAvailable: the noise is not Gaussian, predictions are recalibrated, or the posterior
                takes no further rows, or none of several targets (``CoregionalGP`` does).

        Cost: of an exact Gaussian process n^2 m, one with M inducing points M^2 m, and m^3.
        """
        x = self._standardised(inputs)
        likelihood = conditionable(self.likelihood, self.calibration)
        y = standardised_targets(
            targets, len(x), self.scaler, self.target_transform, self.target_names
        )
        made = copy.copy(self)
        made.posterior = self.posterior.with_observations(
            x, y.to(x), likelihood, self._row_noise(noise, x)
        )
        return made

    def leave_one_out(self) -> LeftOutRows:
        """How every training row is predicted without it, at the hyperparameters of all.

        Raises:
            NotAvailable: as ``left_out_rows``, which says the cost, too.
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
        """Prediction without noise, of the latent function f: mean, standard deviation, interval.

        For real targets f is y without noise, in the data's own units; for counts the logarithm of
        the rate; for classes and shares what the likelihood makes probabilities of, (n, C) for C
        > 2 classes without an order.
        The central 95 % interval is that of f normal with the posterior's mean and variance, as f
        is given its hyperparameters, seen through the transform of the targets where there is one.
        Recalibration is of predictions of y and leaves f as it is. Rows that lack a value are as in
        ``predict``: f is not known there even where it is known everywhere.

        Args:
            inputs (n, d): as for ``predict``.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
        """

        def law(x: Tensor, _: Tensor | None) -> torch.distributions.Distribution:
            mean, variance = self.likelihood.outputs(*self.posterior.predict(x))
            return torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)

        found = over_gaps(law, self._standardised(inputs), self.coding, self.scaler)
        return summary(self.in_targets(found), self.scaler)

    def in_targets(self, law: torch.distributions.Distribution) -> torch.distributions.Distribution:
        """The law of a standardised target, given that of what the posterior sees it as."""
        if self.target_transform is None:
            return law
        scale = float(self.scaler.target_mean), float(self.scaler.target_scale)
        return TransformedLaw(law, self.target_transform, *scale)

    @torch.no_grad()
    def covariance(
        self, inputs: ArrayLike | Frame, *, targets: bool = False
    ) -> NDArray[np.float64]:
        """Joint covariance (n, n) of the function behind y at all inputs, in squared units of y.

        Args:
            inputs (n, d): as for ``predict``.
            targets: of y instead, whose noise adds to the diagonal.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
            ConfigError: the target is a class, a count or a share, there are several, or a
                transform.
            NotAvailable: the posterior has no joint covariance in closed form.
        """
        if self.likelihood.task != "regression":
            raise ConfigError(
                f"a covariance is of a real target, and {self.target_name} is a class, a count or "
                "a share"
            )
        if self.target_names or self.target_transform is not None:
            why = "several" if self.target_names else "a transform of it"
            raise ConfigError(f"a covariance is of one target, and this model is of {why}")
        x = self._standardised(inputs)
        found = self.posterior.joint_covariance(x).double()
        if targets:
            found.diagonal().copy_(self.posterior.predictive(x, self.likelihood).variance)
        return (found * self.scaler.target_scale.to(found.device).square()).cpu().numpy()

    @torch.no_grad()
    def sample(
        self,
        inputs: ArrayLike | Frame,
        num: int = 1,
        *,
        targets: bool = False,
        seed: int = 0,
        jointly: bool = False,
    ) -> NDArray[Any]:
        """Draws from the posterior: functions, or targets around them.

        With one seed the functions are the same wherever they are asked for, so that a curve may be
        drawn piece by piece. Where rows lack a value the functions are those of the inputs with the
        mean filled in and their indicator: they are not averaged as in ``predict``.

        Args:
            inputs (n, d): as for ``predict``.
            num: how many draws.
            targets: False: draws of the latent function, in the units of ``latent``. True: of y,
                each a function with noise of its own at every row; for classes the data's labels.
            seed: of the draws; those of targets depend on the rows, too.
            jointly: draw from the joint normal law of the function at these rows, which is exact
                and takes any kernel, where the posterior has one. Functions are then known at these
                rows alone: asked for others, the same seed gives other functions. n^3 for n rows.

        Returns:
            (num, n), or (num, n, p) for p outputs or latent functions.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
            ConfigError: ``num`` or ``seed`` is no such number, or the kernel has no random Fourier
                features to draw functions from (``jointly`` may serve).
            NotAvailable: y is asked for, and its noise is not the likelihood's or it is
                recalibrated, so that y has no law given one function; or ``jointly`` of a posterior
                without a joint law in closed form.
        """
        if targets:
            require_law_given_function(self.posterior, self.likelihood, self.calibration)
        x = self._standardised(inputs)
        f = drawn_functions(self.posterior, x, num, seed=seed, jointly=jointly)
        if not targets:
            known, _ = self.likelihood.outputs(f, torch.zeros_like(f))
            return self._drawn(known.double().cpu()).numpy()
        y = drawn_targets(self.likelihood, f, seed=seed)
        if not self.labels:
            return self._drawn(y).numpy()
        return np.array(self.labels)[class_numbers(y, self.likelihood.task).numpy()]

    def _drawn(self, values: Tensor) -> Tensor:
        """Drawn values of what the posterior sees, in the data's own units."""
        if self.target_transform is not None:
            return self.target_transform.inverse(values)
        return self.scaler.original_mean(values)

    def coded(self, inputs: ArrayLike | Frame) -> NDArray[np.float64]:
        """The model's inputs (n, d) in their own units, made of the columns of a table.

        Args:
            inputs: as for ``predict``, or a ``Frame`` of ``columns`` in their order.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
        """
        return coded_inputs(inputs, self.columns, self.coding)

    def _standardised(self, inputs: ArrayLike | Frame) -> Tensor:
        return self.placed(self.scaler.transform_inputs(torch.from_numpy(self.coded(inputs))))

    def placed(self, x: Tensor) -> Tensor:
        """Standardised inputs x (n, d) on the device and in the precision of the posterior."""
        # hyperparameters are in the precision of the data; some caches are in float64 whatever that
        numbers = (*self.posterior.parameters(), *self.posterior.buffers())
        reference = next((t for t in numbers if t.is_floating_point()), None)
        return x if reference is None else x.to(reference.device, reference.dtype)
