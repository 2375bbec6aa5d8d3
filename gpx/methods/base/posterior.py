"""What a posterior process is: marginals, joint law and sampled functions at any inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.bases.base import Basis
from gpx.data_sized import DataSized
from gpx.errors import NotAvailable, class_name
from gpx.inducing.features import InducingFeatures
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.tensor_checks import check_alike, check_at_least, check_inputs, guard


class Marginals(NamedTuple):
    """Marginal distribution of the latent function at test inputs, in standardised units.

    Attributes:
        mean (n,) or (n, p): for p latent functions.
        variance (n,) or (n, p): of the latent f, without observation noise.
    """

    mean: Tensor
    variance: Tensor


class Posterior(DataSized, ABC):
    """Posterior process: immutable, self-contained, serialisable through ``state_dict``.

    It holds everything prediction needs (caches as buffers, its own copy of the kernel), so that
    nothing depends on the model it came from, on train()/eval() switches or on hidden caches.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in ("predict", "predictive", "predictive_of_rows", "joint_covariance"):
            guard(cls, method, _check_prediction)
        guard(cls, "with_observations", _check_observations)
        guard(cls, "sample_paths", _check_number)

    @property
    def num_inputs(self) -> int | None:
        """Columns of the inputs it is made for; None where its kernel says what does not fit."""
        basis = getattr(self, "basis", None)
        return basis.num_inputs if isinstance(basis, Basis) else None

    @abstractmethod
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (n, d); no gradient graph is kept.

        Raises:
            ShapeError, DTypeError: not a matrix, or in another precision or on another device than
                the posterior (checked for every subclass).
        """

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Distribution of y at x (n, d), batch shape (n,); no gradient graph is kept.

        Default: Gaussian latent marginals under ``likelihood``. Posteriors with other marginals, or
        with uncertain noise, override it.
        """
        with torch.no_grad():
            marginals = self.predict(x)
            return likelihood.predictive(marginals.mean, marginals.variance)

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """``predictive`` of rows whose noise is known in part, or that stand for several each.

        Args:
            noise: of every row of x; where the noise is the posterior's own, known variances alone.
        """
        with torch.no_grad():
            if self.has_own_noise:
                return noise.added_to(self.predictive(x, likelihood))
            return likelihood.predictive_of_rows(*self.predict(x), noise)

    def fix(self) -> None:
        """Derive now what ``predict`` derives from the state; before ``torch.export`` only.

        What is recorded must not read numbers out of tensors. The state must not change or move
        afterwards: fix a copy. Default: nothing.
        """

    def inducing_variables(self) -> tuple[Tensor, InducingFeatures] | None:
        """Inducing inputs Z (M, d) and their features, where it predicts from them; else None.

        Certificates compare with the sparse posterior of these variables; without any they choose
        inducing points of their own.
        """
        return None

    @property
    def has_own_noise(self) -> bool:
        """Whether ``predictive`` uses the posterior's own noise and not that of the likelihood: its
        variance is uncertain, or each of several experts has another."""
        return False

    def own_hyperparameters(self) -> dict[str, Tensor] | None:
        """Learned hyperparameters of a posterior of several parts: natural units, by dotted name.

        Its ``kernel``, ``mean`` and likelihood are then only the values that the parts started
        from. None (the default): they are what was learned.
        """
        return None

    def joint_covariance(self, x: Tensor) -> Tensor:
        """Covariance (n, n) of the latent function at x (n, d), without observation noise.

        Raises:
            NotAvailable: this posterior has none in closed form.
        """
        raise no_joint_law(self)

    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """A posterior that knows further rows, too; hyperparameters stay, and so does this one.

        Args:
            x (m, d), y (m,) or (m, p): the rows, standardised as the training data were.
            likelihood: its noise variance is that of the rows.
            noise: what is known of the noise of each row; None: nothing.

        Raises:
            NotAvailable: what this posterior keeps of its data takes no others. Default.
        """
        raise NotAvailable(
            f"{class_name(self)} takes no further rows without being trained again; exact Gaussian "
            "processes, those with inducing points (SGPR, SVGP, FITC), Vecchia and "
            "TransductiveGPs do"
        )

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for metrics.json: how predictions were computed, at what accuracy."""
        return {}

    @abstractmethod
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions as one callable: x (n, d) -> (num, n).

        The callable returns the same functions wherever and however often it is asked.

        Raises:
            ConfigError: fewer than one (checked for every subclass).
        """


def no_joint_law(posterior: Posterior) -> NotAvailable:
    """The error of a posterior that knows the marginals of f, and not its joint law."""
    return NotAvailable(
        f"{class_name(posterior)} has no joint covariance in closed form, which exact GPs and "
        "those with inducing points have; functions can be sampled from any posterior"
    )


def _check_prediction(posterior: Posterior, x: Tensor, *_: Any, **__: Any) -> None:
    check_inputs(posterior, x, posterior.num_inputs)


def _check_observations(posterior: Posterior, x: Tensor, y: Tensor, *_: Any, **__: Any) -> None:
    check_inputs(posterior, x, posterior.num_inputs)
    check_alike("inputs and targets of further rows", x, y)


def _check_number(posterior: Posterior, num: int, **_: Any) -> None:
    check_at_least(1, num=num)
