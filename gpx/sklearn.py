"""Estimators for scikit-learn: pipelines, cross-validation and grid search with gpx::

    from gpx.sklearn import GPXRegressor

    model = GPXRegressor(kernel="matern32").fit(X, y)
    mean, std = model.predict(X_new, return_std=True)

They train on all rows, print nothing and leave no files behind. They need the extra
``pip install 'gpx-torch[sklearn]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpx.errors import ConfigError, NoSpectrum, class_name
from gpx.kernels import Kernel
from gpx.likelihoods import Likelihood, Ordinal
from gpx.runs.fit import fit
from gpx.runs.function_draws import MAX_JOINT_ROWS
from gpx.runs.predictor import Predictor

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
    from sklearn.utils import Tags, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f"gpx.sklearn needs scikit-learn 1.6 or newer ({error}): pip install 'gpx-torch[sklearn]'"
    ) from error

QUIET_OPTIONS = (
    "data.test_fraction=0",
    "trainer.tensorboard=false",
    "trainer.figures=false",
    "trainer.baselines=false",
    "trainer.eval_every=0",
)
"""Train on all rows, without logs, figures and baselines."""

MAX_SEED = 2**31 - 1

JOINT = ("auto", "independent", "coregional")
"""Approximations that take several targets."""


class _GPXEstimator(BaseEstimator):
    """Base of both estimators."""

    predictor_: Predictor

    def __init__(
        self,
        approx: str | None = None,
        kernel: Kernel | str | None = None,
        likelihood: Likelihood | str | None = None,
        options: Sequence[str] = (),
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.approx = approx
        self.kernel = kernel
        self.likelihood = likelihood
        self.options = options
        self.random_state = random_state
        self.device = device

    def _train(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        likelihood: Likelihood | str | None,
        noise: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """Train on x (n, d) and y (n,) or (n, p), all rows; ``noise``, ``weights``: of gpx.fit."""
        if isinstance(self.options, str) or not isinstance(self.options, Sequence):
            raise ConfigError(
                f"options={self.options!r} is not a list; give a list of options as on the command "
                "line, such as options=['trainer.max_steps=100']"
            )
        seed = check_random_state(self.random_state).randint(MAX_SEED)
        fitted = fit(
            x,
            y,
            f"approx={self.approx or 'auto'}",
            f"trainer.device={self.device}",
            f"seed={seed}",
            *QUIET_OPTIONS,
            *self.options,
            kernel=self.kernel,
            likelihood=likelihood,
            quiet=True,
            keep=False,
            noise=noise,
            weights=weights,
        )
        classifies = is_classifier(self)
        if bool(fitted.model.labels) != classifies:
            named = likelihood if isinstance(likelihood, str) else class_name(likelihood)
            raise ConfigError(
                f"likelihood={named} models "
                + ("numbers" if classifies else "classes")
                + f" and cannot be used with {type(self).__name__}; choose another likelihood="
            )
        self.predictor_ = fitted.model

    def _inputs(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)


def _repeated(
    x: NDArray[Any], y: NDArray[Any], sample_weight: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of x (n, d) and y (n,) or (n, p), each repeated as often as its weight (n,)."""
    weight = _check_sample_weight(
        sample_weight, x, ensure_non_negative=True, allow_all_zero_weights=False
    )
    if not (weight == weight.round()).all():
        raise ValueError(
            "sample_weight must be whole numbers (how often each row was observed); for known "
            "noise variances or relative precisions use noise= or weights= of GPXRegressor.fit"
        )
    counts = weight.astype(int)
    if counts.sum() < 2:
        raise ValueError("sample_weight leaves a single row; training needs at least two")
    return np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0)


class GPXRegressor(RegressorMixin, _GPXEstimator):
    """Gaussian process regression, of one target or several.

    Args:
        approx: as ``approx=`` on the command line; None: ``auto``, which chooses it, and the kernel
            where ``kernel`` is None, as ``gpx.fit`` does. ``exact`` with a named kernel, for up to
            some thousand rows, takes a fraction of the time.
        kernel: as ``kernel=``, also ``"rbf*periodic + linear"``, or a module, ``RBF() + Linear()``;
            None: as chosen, or the default of ``approx``.
        likelihood: as ``likelihood=``; None: Gaussian noise.
        options: further options as on the command line, such as ``["trainer.max_steps=100"]``.
        random_state: of all random draws in training; an integer makes fits repeatable.
        device: ``auto`` (CUDA if available), ``cpu``, ``cuda`` or ``cuda:N``.

    Attributes:
        predictor_: the trained model, as from ``gpx.load``.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.approx in (None, *JOINT)
        return tags

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> GPXRegressor:
        """Train on X (n, d) and y (n,) or (n, p), at least two rows, in their own units.

        Args:
            X: inputs.
            y: targets; p > 1 of each row for methods that take several.
            sample_weight (n,): whole numbers, how often each row was observed; as usual in
                scikit-learn, a row of weight 2 is the same as two such rows, and costs as much.
            noise (n,): known noise variance of each row, in squared units of y, added to the
                learned one (``approx="exact"``); (n, p) of each target, as in ``gpx.fit``.
            weights (n,): relative precisions: the learned noise variance is divided by the weight
                of the row (``approx="exact"``). The mean of w measurements has weight w.

        Raises:
            ValueError: ``sample_weight`` is not whole, negative, or all zero, or is given together
                with ``noise`` or ``weights``.
            ConfigError: the model needs one noise variance for all rows.
        """
        x, targets = validate_data(
            *(self, X, y), dtype=np.float64, y_numeric=True, multi_output=True, ensure_min_samples=2
        )
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = column_or_1d(targets, warn=True)
        if sample_weight is not None:
            if noise is not None or weights is not None:
                raise ValueError("give either sample_weight, or noise and weights, not both")
            x, targets = _repeated(x, targets, sample_weight)
        self._train(x, targets, self.likelihood, noise=noise, weights=weights)
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predictive mean of y (n,) or (n, p) at X (n, d), and its uncertainty, noise included.

        Args:
            X: inputs in their own units.
            return_std: also return the standard deviation, of the same shape.
            return_cov: also return the covariance (n, n), for posteriors that have one (exact GPs,
                inducing points); n^2 memory.

        Raises:
            ValueError: both are requested.
            NotAvailable: the posterior has no covariance in closed form, or predictions are
                recalibrated.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot be used together: choose one")
        x = self._inputs(X)
        prediction = self.predictor_.predict(x)
        if return_std:
            return prediction.mean, prediction.std
        if return_cov:
            return prediction.mean, self.predictor_.covariance(x, targets=True)
        return prediction.mean

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        noise: bool = True,
    ) -> NDArray[np.float64]:
        """Draws (n, n_samples) of y at X (n, d); without ``noise``, of the latent function.

        Of p > 1 targets they are (n, p, n_samples).

        If the kernel has random Fourier features, functions are drawn; otherwise the draws are from
        the joint normal distribution at these rows (exact GPs, inducing points), at a cost of n^3.

        Raises:
            ConfigError: more than 5,000 rows for joint draws.
            NotAvailable: neither features nor a joint distribution.
        """
        seed = check_random_state(random_state).randint(MAX_SEED)
        x = self._inputs(X)
        try:
            drawn = self.predictor_.sample(x, n_samples, targets=noise, seed=seed, jointly=False)
        except NoSpectrum:
            if len(x) > MAX_JOINT_ROWS:
                raise
            drawn = self.predictor_.sample(x, n_samples, targets=noise, seed=seed, jointly=True)
        return np.moveaxis(drawn, 0, -1)


class GPXClassifier(ClassifierMixin, _GPXEstimator):
    """Gaussian process classification with two classes or more.

    Args:
        approx: as for ``GPXRegressor``. ``laplace`` takes a fraction of the time of what ``auto``
            chooses for classes, and has less extreme probabilities.
        kernel, options, random_state, device: as for ``GPXRegressor``.
        likelihood: as ``likelihood=``; None: ``bernoulli`` for two classes, otherwise ``softmax``.
            For ``ordinal`` texts, options give their order: ``["likelihood.order=[low,high]"]``.

    Attributes:
        classes_: the labels, numbers or texts, ascending.
        predictor_: the trained model; its labels are indices of ``classes_``, or ordered texts.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> GPXClassifier:
        """Train on X (n, d) and labels y (n,), of at least two classes.

        Args:
            X: inputs.
            y: labels.
            sample_weight (n,): whole numbers, how often each row was observed; see
                ``GPXRegressor``.

        Raises:
            ValueError: only one class, or weights that are not whole, negative, or all zero.
        """
        x, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        if sample_weight is not None:
            x, labels = _repeated(x, labels, sample_weight)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds only one class ({self.classes_[0]}); a classifier needs two or more"
            )
        default = "bernoulli" if len(self.classes_) == 2 else "softmax"
        ordinal = self.likelihood == "ordinal" or isinstance(self.likelihood, Ordinal)
        if ordinal and all(isinstance(label, str) for label in self.classes_):
            self._train(x, labels.astype(str), self.likelihood)
            order = [str(label) for label in self.predictor_.labels]
            self._columns: list[int] | slice = [order.index(label) for label in self.classes_]
        else:
            self._train(x, codes.astype(np.float64), self.likelihood or default)
            self._columns = slice(None)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probability (n, C) of every class of ``classes_``."""
        x = self._inputs(X)
        columns = getattr(self, "_columns", slice(None))  # pickles of earlier versions have none
        return self.predictor_.predict_classes(x).probability[:, columns]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label (n,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]
