"""A trained model: predictions in the data's own units."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpx.calibration import Recalibration
from gpx.data import Standardiser
from gpx.data.columns.coding import Coding
from gpx.data.columns.frame import Frame, as_rows, frame_of, require_columns
from gpx.data.columns.numbers import numbered_names
from gpx.data.images.pixels import pixel_rows
from gpx.data.labels import Label
from gpx.data.target_transform import TargetTransform, TransformedLaw
from gpx.errors import ConfigError, DataError, NotAvailable, ShapeError, class_name
from gpx.likelihoods import Gaussian, Likelihood, target_marginals
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.quantiles import central_interval
from gpx.likelihoods.row_noise import RowNoise
from gpx.models import Posterior
from gpx.runs.arrays import column_names, columns_by_name, real_array
from gpx.runs.gaps import Law, over_gaps
from gpx.runs.hyperparameters import Hyperparameters, hyperparameters_of, shown
from gpx.sampling.seeds import derive_seed, global_randomness, stream


class Prediction(NamedTuple):
    """Predictive distribution of y per row, in the data's own units.

    Attributes:
        mean (n,), std (n,): of y, observation noise included; (n, p) for p > 1 outputs.
        lower (n,), upper (n,): ends of the central 95 % interval, shaped alike; of several outputs
            each holds its own with that probability.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class ClassPrediction(NamedTuple):
    """Predictive distribution of the class per row, in the data's own labels.

    Attributes:
        label (n,): of the most probable class; texts where the classes have names.
        probability (n, C): of every class, in the order of ``Predictor.labels``.
    """

    label: NDArray[Any]
    probability: NDArray[np.float64]


class Predictor:
    """Posterior, likelihood and data scaling of one run.

    Args:
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

    def __init__(
        self,
        posterior: Posterior,
        likelihood: Likelihood,
        scaler: Standardiser,
        input_names: tuple[str, ...],
        target_name: str,
        labels: tuple[Label, ...] = (),
        target_names: tuple[str, ...] = (),
        calibration: Recalibration | None = None,
        coding: Coding | None = None,
        target_transform: TargetTransform | None = None,
    ) -> None:
        self.posterior = posterior
        self.likelihood = likelihood
        self.scaler = scaler
        self.input_names = input_names
        self.target_name = target_name
        self.labels = labels
        self.target_names = target_names
        self.calibration = calibration
        self.coding = coding
        self.target_transform = target_transform

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
        if noise is None:
            return self._over_gaps(lambda x, _: self.posterior.predictive(x, self.likelihood), x)
        if not isinstance(self.likelihood, Gaussian):
            raise ConfigError("known noise adds to that of likelihood=Gaussian() only")
        of_all, learned = noise, self.likelihood.noise_variance

        def law(x: Tensor, rows: Tensor | None) -> torch.distributions.Distribution:
            known = of_all if rows is None else of_all.of(rows.to(of_all.known.device))
            return known.predictive(*self.posterior.predict(x), learned)

        return self._over_gaps(law, x)

    def _over_gaps(self, law: Law, x: Tensor) -> torch.distributions.Distribution:
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
        if self.likelihood.task in ("binary", "multiclass"):
            raise ConfigError(
                f"{self.target_name} is a class, which has no mean: call predict_classes"
            )
        x = self._standardised(inputs)
        distribution = target_marginals(self.distribution(x, self._row_noise(noise, x)))
        return self._in_own_units(distribution)

    def condition(
        self, inputs: ArrayLike | Frame, targets: ArrayLike, noise: ArrayLike | None = None
    ) -> Predictor:
        """A model that knows these rows as well, at the hyperparameters of this one.

        Nothing is trained, and this model stays as it is. An exact Gaussian process becomes that of
        all rows; one with inducing points is conditioned exactly on the rows, wherever these lie;
        one that looks at the nearest rows may find these. Scaling stays that of the training rows.

        Args:
            inputs (m, d): as for ``predict``.
            targets (m,): in the data's own unit.
            noise (m,): known variances of their noise, as for ``predict``.

        Returns:
            a model of the same methods, which can be pickled and conditioned again.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``, of targets too.
            ConfigError: noise beside a transform of the targets.
            NotAvailable: the noise is not Gaussian or of several targets, predictions are
                recalibrated, or the posterior takes no further rows.

        Cost: of an exact Gaussian process n^2 m, one with M inducing points M^2 m, and m^3.
        """
        x = self._standardised(inputs)
        self._require_conditionable()
        y = torch.from_numpy(real_array(targets, "targets"))
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y.shape != x.shape[:1]:
            raise ShapeError(
                f"targets have shape {tuple(y.shape)}, expected ({len(x)},) for as many rows of "
                "inputs"
            )
        if not len(y) or not bool(y.isfinite().all()):
            found = "none" if not len(y) else float(y[~y.isfinite()][0])
            raise DataError(f"targets: found {found}, expected finite numbers")
        if self.target_transform is None:
            y = self.scaler.transform_targets(y)
        else:
            y = self.target_transform(y)
            if not bool(y.isfinite().all()):
                raise DataError(f"targets lie outside what {self.target_transform.kind} takes")
        assert isinstance(self.likelihood, Gaussian)
        made = copy.copy(self)
        made.posterior = self.posterior.with_observations(
            x, y.to(x), self.likelihood, self._row_noise(noise, x)
        )
        return made

    def _require_conditionable(self) -> None:
        """Raise NotAvailable where further rows have no Gaussian noise of one known variance."""
        why = ""
        if not isinstance(self.likelihood, Gaussian):
            why = f"a {class_name(self.likelihood)} likelihood"
        elif self.target_names:
            why = f"{len(self.target_names)} targets"
        elif self.calibration is not None:
            why = "recalibration, which was fitted to predictions without them"
        if why:
            raise NotAvailable(
                f"rows can be added to one target with Gaussian noise, and this model has {why}: "
                "train again with them"
            )

    def _row_noise(self, noise: ArrayLike | None, x: Tensor) -> RowNoise | None:
        """Known variances in the target's own unit, standardised and like x (n, d)."""
        if noise is None:
            return None
        if self.target_transform is not None:
            raise ConfigError("noise is that of the target, not of its transform: leave it out")
        known = torch.from_numpy(real_array(noise, "noise variances"))
        if known.shape != x.shape[:1] or not bool((known >= 0.0).all()):
            raise ShapeError(
                f"noise must be {len(x)} variances, none of them negative, got an array of "
                f"shape {tuple(known.shape)}"
            )
        known = known / self.scaler.target_scale.square()
        return RowNoise(known, torch.ones_like(known)).like(x)

    def _in_own_units(self, distribution: torch.distributions.Distribution) -> Prediction:
        lower, upper = central_interval(distribution, 0.95)
        mean = self.scaler.original_mean(distribution.mean.double().cpu())
        std = self.scaler.original_std(distribution.stddev.double().cpu())
        return Prediction(
            _array(mean),
            _array(std),
            _array(self.scaler.original_mean(lower.double().cpu())),
            _array(self.scaler.original_mean(upper.double().cpu())),
        )

    def predict_classes(self, inputs: ArrayLike | Frame) -> ClassPrediction:
        """Most probable label and the probability of every class.

        Args:
            inputs (n, d): as for ``predict``.

        Raises:
            ShapeError: the number of columns differs from training.
            DTypeError, DataError: not real numbers, or not finite.
            ConfigError: the target is a number.
        """
        if self.likelihood.task not in ("binary", "multiclass"):
            raise ConfigError(f"{self.target_name} is a number, not a class: call predict")
        distribution: Any = self.distribution(self._standardised(inputs))
        probability = distribution.probs.double().cpu()
        if self.likelihood.task == "binary":  # of the class coded 1, the larger label
            probability = torch.stack([1.0 - probability, probability], dim=1)
        else:  # those of a float32 model add to one as well as float32 does
            probability = probability / probability.sum(1, keepdim=True)
        labels = np.array(self.labels)[probability.argmax(1).numpy()]
        return ClassPrediction(labels, _array(probability))

    def latent(self, inputs: ArrayLike | Frame) -> Prediction:
        """Prediction without noise, of the latent function f: mean, standard deviation, interval.

        For real targets f is y without noise, in the data's own units; for counts the logarithm of
        the rate; for classes what the likelihood makes probabilities of, (n, C) for C > 2 of them.
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
            mean, variance = self._outputs(*self.posterior.predict(x))
            return torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)

        found = self._over_gaps(law, self._standardised(inputs))
        return self._in_own_units(self.in_targets(found))

    @torch.no_grad()
    def _outputs(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of the functions behind the targets, given those of the latent functions."""
        if isinstance(self.likelihood, NoisyOutputs):
            return self.likelihood.outputs(mean, variance)
        return mean, variance

    def in_targets(self, law: torch.distributions.Distribution) -> torch.distributions.Distribution:
        """The law of a standardised target, given that of what the posterior sees it as."""
        if self.target_transform is None:
            return law
        scale = float(self.scaler.target_mean), float(self.scaler.target_scale)
        return TransformedLaw(law, self.target_transform, *scale)

    def covariance(
        self, inputs: ArrayLike | Frame, *, targets: bool = False
    ) -> NDArray[np.float64]:
        """Joint covariance (n, n) of the function behind y at all inputs, in squared units of y.

        Args:
            inputs (n, d): as for ``predict``.
            targets: of y instead, whose noise adds to the diagonal.

        Raises:
            ShapeError, DTypeError, DataError: as ``predict``.
            ConfigError: the target is a class or a count, there are several, or a transform.
            NotAvailable: the posterior has no joint covariance in closed form.
        """
        if self.likelihood.task != "regression":
            raise ConfigError(
                f"a covariance is of a real target, and {self.target_name} is a class or a count"
            )
        if self.target_names or self.target_transform is not None:
            why = "several" if self.target_names else "a transform of it"
            raise ConfigError(f"a covariance is of one target, and this model is of {why}")
        x = self._standardised(inputs)
        found = self.posterior.joint_covariance(x).double()
        if targets:
            with torch.no_grad():
                both = self.posterior.predictive(x, self.likelihood).variance.double()
            found.diagonal().copy_(both)
        return _array((found * self.scaler.target_scale.to(found.device).square()).cpu())

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
        if num < 1 or not 0 <= seed < 2**63:
            raise ConfigError(
                f"num={num} must be at least 1, and seed={seed} a whole number of at least 0"
            )
        own_noise = self.posterior.has_own_noise and self.likelihood.task == "regression"
        if targets and (own_noise or self.calibration is not None):
            why = (
                "the noise is uncertain or differs between experts"
                if own_noise
                else "recalibration"
            )
            raise NotAvailable(
                f"targets cannot be drawn around a function here ({why}); draw functions with "
                "targets=False, or take the law of each target from predict"
            )
        x = self._standardised(inputs)
        draws = stream(seed, "sampled functions", x.device)
        with torch.no_grad():
            if jointly:
                f = joint_draws(self.posterior, x, num, generator=draws)
            else:
                f = self.posterior.sample_paths(num, generator=draws)(x)
            if not targets:
                known, _ = self._outputs(f, torch.zeros_like(f))
                return _array(self._drawn(known.double().cpu()))
            rows = f.reshape(num * len(x), *f.shape[2:])
            with global_randomness(derive_seed(seed, "sampled noise")):
                y = self.likelihood.predictive(rows, torch.zeros_like(rows)).sample()
        y = y.reshape(num, len(x), *y.shape[1:]).double().cpu()
        if not self.labels:
            return _array(self._drawn(y))
        code = (y > 0.0).long() if self.likelihood.task == "binary" else y.long()
        return np.array(self.labels)[code.numpy()]

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
        if isinstance(inputs, Frame):
            return (self.coding or Coding.of_numbers(self.columns))(inputs)
        given, columns = column_names(inputs), self.columns
        unnamed = columns == numbered_names(len(columns))
        if given is not None and not (unnamed and set(given).isdisjoint(columns)):
            inputs = columns_by_name(inputs, columns, "inputs")
        if self.coding is not None and not self.coding.plain:
            return self.coding(frame_of(inputs, columns, "inputs"))
        array = pixel_rows(real_array(inputs, "inputs"), columns)  # type: ignore[arg-type]
        array = as_rows(array, len(columns))
        require_columns(array, columns)
        if not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise DataError(
                f"inputs, row {row + 1}, column {column + 1} ({columns[column]!r}): found "
                f"{array[row, column]}, expected a finite number"
            )
        return array

    def _standardised(self, inputs: ArrayLike | Frame) -> Tensor:
        return self.placed(self.scaler.transform_inputs(torch.from_numpy(self.coded(inputs))))

    def placed(self, x: Tensor) -> Tensor:
        """Standardised inputs x (n, d) on the device and in the precision of the posterior."""
        # hyperparameters are in the precision of the data; some caches are in float64 whatever that
        numbers = (*self.posterior.parameters(), *self.posterior.buffers())
        reference = next((t for t in numbers if t.is_floating_point()), None)
        return x if reference is None else x.to(reference.device, reference.dtype)


def joint_draws(posterior: Posterior, x: Tensor, num: int, *, generator: torch.Generator) -> Tensor:
    """Draws (num, n) from the joint normal law of the function at x (n, d), of its precision.

    Raises:
        NotAvailable: the posterior has no joint law in closed form.

    Cost: n^3, from eigenvectors: no jitter, and negative eigenvalues, which are rounding, are zero.
    """
    covariance = posterior.joint_covariance(x).double()
    values, vectors = torch.linalg.eigh(covariance)
    normals = torch.randn(
        num, len(x), generator=generator, dtype=torch.float64, device=covariance.device
    )
    deviations = (normals * values.clamp_min(0.0).sqrt()) @ vectors.mT
    return posterior.predict(x).mean + deviations.to(x)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.numpy()
