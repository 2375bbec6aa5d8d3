"""The contract of posteriors: marginals, joint law and sampled functions at any inputs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gpx.bases.base import Basis
from gpx.data_sized import DataSized
from gpx.errors import ConfigError, NotAvailable, ShapeError, class_name
from gpx.inducing.features import InducingFeatures, Points
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.gradients import keep_graph_if_wanted, leave_inference_mode, wants_gradient
from gpx.methods.base.sampled_functions import normal_draws
from gpx.shown_values import FIXED
from gpx.tensor_checks import (
    check_at_least,
    check_finite_targets,
    check_inputs,
    check_targets,
    guard,
)

Part = TypeVar("Part", bound=nn.Module)

PREDICTIONS = ("predict", "predictive", "predictive_of_rows", "joint_covariance")
"""Methods of posteriors that are functions of x alone."""


def untrained(part: Part) -> Part:
    """A copy of a kernel, mean or other part of a model, for its posterior: nothing is trained."""
    return copy.deepcopy(part).requires_grad_(False)


class Marginals(NamedTuple):
    """Marginal distribution of the latent function at test inputs, in standardised units.

    Attributes:
        mean (n,) or (n, p): for p latent functions.
        variance (n,) or (n, p): of the latent f, without observation noise.
    """

    mean: Tensor
    variance: Tensor

    @property
    def stddev(self) -> Tensor:
        """Standard deviations; zero where rounding made a variance negative."""
        return self.variance.clamp_min(0.0).sqrt()


class Posterior(DataSized, ABC):
    """Posterior process: immutable, self-contained, serialisable through ``state_dict``.

    It holds everything prediction needs (caches as buffers, its own copy of the kernel), so that
    nothing depends on the model it came from, on train()/eval() switches or on hidden caches.
    Predictions keep a graph for inputs that require a gradient, and only then.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in PREDICTIONS:
            keep_graph_if_wanted(cls, method)
            guard(cls, method, _check_inputs)
        guard(cls, "with_observations", _check_observations)
        guard(cls, "sample_paths", _check_number)
        for method in (*PREDICTIONS, "project", "with_observations", "sample_paths"):
            leave_inference_mode(cls, method)

    @property
    def num_inputs(self) -> int | None:
        """Input columns it expects; None: only the kernel checks them.

        Where a basis takes any number of columns, it is that of training (``TrainedColumns``).

        Raises:
            ConfigError: it has inducing points, and no state yet.
        """
        basis = getattr(self, "basis", None)
        if isinstance(basis, Basis):
            return basis.num_inputs or getattr(self, "trained_columns", None)
        found = self.inducing_variables()
        if found is None or not isinstance(found[1], Points):
            return None
        if found[0].ndim != 2:
            raise ConfigError(
                f"{class_name(self)} is empty: load the state of a posterior into it with "
                "load_state_dict, or take the one that model.condition(x, y) returns"
            )
        return found[0].shape[1]

    @abstractmethod
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (n, d).

        No graph is kept, unless x requires a gradient: first derivatives by x are those of mean and
        variance, with all hyperparameters fixed.

        Raises:
            NotAvailable: x requires a gradient, and the subclass has cut it off (checked for every
                subclass).
            ShapeError, DTypeError: not a matrix, or in another precision or on another device than
                the posterior (checked for every subclass).
        """

    def __repr__(self) -> str:
        return super().__repr__().replace(FIXED, "")  # nothing of a posterior is trained

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raises NotAvailable: a posterior is asked by name."""
        raise NotAvailable(
            f"{class_name(self)} is not called: take predict(x) for mean and variance of the "
            "function, predictive(x, likelihood) for new observations, joint_covariance(x), "
            "sample(x, number, generator=...) or sample_paths(number, generator=...)"
        )

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Distribution of y at x (n, d), batch shape (n,); differentiable as ``predict``.

        Default: ``likelihood`` averaged over Gaussian marginals of f. Posteriors with other
        marginals, or with uncertain noise, override it.
        """
        _check_inputs(self, x)
        with torch.set_grad_enabled(wants_gradient(x)):
            marginals = self.predict(x)
            return likelihood.predictive(marginals.mean, marginals.variance)

    def outputs(self, x: Tensor, likelihood: Likelihood) -> Marginals:
        """Mean and variance at x (n, d) of what the likelihood makes of f without noise."""
        return Marginals(*likelihood.outputs(*self.predict(x)))

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """``predictive`` for rows with known noise variances or weights.

        Args:
            noise: of every row of x. If ``has_own_noise``, only known variances are used.
        """
        _check_inputs(self, x)
        with torch.set_grad_enabled(wants_gradient(x)):
            if self.has_own_noise:
                return noise.added_to(self.predictive(x, likelihood))
            return likelihood.predictive_of_rows(*self.predict(x), noise)

    def fix(self) -> None:
        """Compute now what ``predict`` derives from the state; called before ``torch.export``.

        An exported graph cannot read numbers out of tensors. Afterwards the state must not change
        or move to another device, so this is called on a copy. Default: nothing.
        """

    def inducing_variables(self) -> tuple[Tensor, InducingFeatures] | None:
        """Inducing inputs Z (M, d) and their features; None: the posterior has none.

        Certificates use the sparse posterior of these variables; without them they choose inducing
        points themselves.
        """
        return None

    @property
    def has_own_noise(self) -> bool:
        """Whether ``predictive`` uses noise of the posterior in place of the likelihood's: the
        variance is uncertain, or differs between experts."""
        return False

    def noise_of_draws(self, num: int, *, generator: torch.Generator) -> Tensor | None:
        """Noise variances (num,) of functions that a generator in the same state would draw.

        They are those of the first ``num`` functions of ``sample`` and ``sample_paths`` for a
        regression with normal noise. None (default): the likelihood's, or not known of a function
        (``has_own_noise``).
        """
        return None

    def own_hyperparameters(self) -> dict[str, Tensor] | None:
        """Learned hyperparameters in natural units by dotted name, for posteriors of several parts.

        ``kernel``, ``mean`` and likelihood then hold only the initial values. None (default): they
        hold the learned values.
        """
        return None

    def joint_covariance(self, x: Tensor) -> Tensor:
        """Covariance (n, n) of the latent function at x (n, d), without observation noise.

        Raises:
            NotAvailable: this posterior has no joint covariance in closed form.
        """
        raise no_joint_law(self)

    @torch.no_grad()
    def sample(self, x: Tensor, num: int = 1, *, generator: torch.Generator) -> Tensor:
        """``num`` draws (num, n) of the latent function at x (n, d), exactly and jointly.

        Draws at other inputs belong to other functions: for functions to be evaluated again take
        ``sample_paths``.

        Raises:
            ConfigError: num < 1.
            NotAvailable: this posterior has no joint covariance in closed form.

        Cost: O(n^3) for eigenvectors, which need no jitter; eigenvalues that rounding made negative
        count as 0.
        """
        check_at_least(1, num=num)
        covariance = self.joint_covariance(x)
        return self.predict(x).mean + normal_draws(covariance, num, generator=generator).to(x)

    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """A new posterior conditioned on further rows as well, at the same hyperparameters.

        Args:
            x (m, d), y (m,) or (m, p): the rows, standardised as the training data were.
            likelihood: has the noise variance of these rows.
            noise: known noise variances or weights of these rows; None: nothing is known.

        Raises:
            ShapeError, DTypeError: x is no matrix, y is not (m,), or (m, p) for a likelihood of p
                outputs, or they are in another precision or on another device than the posterior.
            DataError: a target is infinite, or missing (NaN) where a row has one. (Both are checked
                for every subclass.)
            NotAvailable: this posterior cannot be updated. Default.
        """
        raise NotAvailable(
            f"{class_name(self)} takes no further rows without being trained again; exact Gaussian "
            "processes, those with inducing points (SGPR, SVGP, FITC), Vecchia and "
            "TransductiveGPs do"
        )

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for metrics.json: how predictions are computed, and how accurately."""
        return {}

    @abstractmethod
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions as one callable: x (n, d) -> (num, n).

        The callable returns values of the same functions at every call. For x that requires a
        gradient they keep a graph, or the call raises NotAvailable.

        Raises:
            ConfigError: num < 1 (checked for every subclass).
        """


def no_joint_law(posterior: Posterior) -> NotAvailable:
    """The error to raise for a posterior that has marginals of f but no joint law."""
    return NotAvailable(
        f"{class_name(posterior)} has no joint covariance in closed form, which exact GPs and "
        "those with inducing points have; functions can be sampled from any posterior"
    )


def _check_inputs(posterior: Posterior, x: Tensor, *_: Any, **__: Any) -> None:
    check_inputs(posterior, x, posterior.num_inputs)


def _check_observations(
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    noise: RowNoise | None = None,
    **_: Any,
) -> None:
    check_inputs(posterior, x, posterior.num_inputs)
    check_targets(posterior, x, y, likelihood.num_outputs)
    check_finite_targets(posterior, y)
    # the noise of one row would be broadcast to the covariances of all
    if noise is not None and noise.known.shape not in (x.shape[:1], y.shape):
        raise ShapeError(
            f"{class_name(posterior)}: the noise of further rows has shape "
            f"{tuple(noise.known.shape)}, expected {tuple(x.shape[:1])} for as many rows of inputs"
        )


def _check_number(posterior: Posterior, num: int, **_: Any) -> None:
    check_at_least(1, num=num)
