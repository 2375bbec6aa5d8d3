"""What a model is: kernel (or basis), mean, likelihood, variational state; it gives a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gpx.bases.base import Basis
from gpx.data_sized import DataSized
from gpx.errors import ConfigError, NotAvailable, class_name
from gpx.inducing.features import InducingFeatures
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.start import StartWatch
from gpx.priors import Priors
from gpx.tensor_checks import check_at_least, check_inputs, check_targets, guard


class Marginals(NamedTuple):
    """Marginal distribution of the latent function at test inputs, in standardised units.

    Attributes:
        mean (n,) or (n, p): for p latent functions.
        variance (n,) or (n, p): of the latent f, without observation noise.
    """

    mean: Tensor
    variance: Tensor


class Hyperparameters(NamedTuple):
    """Where the hyperparameters of a Gaussian process are; modules of the model itself."""

    kernel: Kernel
    mean: Mean
    likelihood: Likelihood


EXAMPLES = {
    "kernel": "kernels.RBF()",
    "mean": "means.Zero()",
    "likelihood": "likelihoods.Gaussian()",
}
"""Of each hyperparameter's class, for people who gave something else."""


class Posterior(DataSized, ABC):
    """Posterior process: immutable, self-contained, serialisable through ``state_dict``.

    It holds everything prediction needs (caches as buffers, its own copy of the kernel), so that
    nothing depends on the model it came from, on train()/eval() switches or on hidden caches.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in ("predict", "predictive"):
            guard(cls, method, _check_prediction)
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

        That of the latent marginals under ``likelihood``; posteriors whose marginals are not
        Gaussian, or whose noise is uncertain, know better.
        """
        with torch.no_grad():
            marginals = self.predict(x)
            return likelihood.predictive(marginals.mean, marginals.variance)

    def fix(self) -> None:
        """Derive now what ``predict`` derives from the state; before ``torch.export`` only.

        What is recorded must not read numbers out of tensors. The state must not change or move
        afterwards: fix a copy. Default: nothing.
        """

    def inducing_variables(self) -> tuple[Tensor, InducingFeatures] | None:
        """Z (M, d) and what it stands for, where it predicts from that; else None.

        Certificates compare with the sparse posterior of these variables; without any they choose
        inducing points of their own.
        """
        return None

    @property
    def has_own_noise(self) -> bool:
        """Whether numbers given f are other than the likelihood says: their noise is uncertain, or
        that of one of several experts. ``predictive`` knows it."""
        return False

    def joint_covariance(self, x: Tensor) -> Tensor:
        """Covariance (n, n) of the latent function at x (n, d), without observation noise.

        Raises:
            NotAvailable: this posterior has none in closed form.
        """
        raise no_joint_law(self)

    def with_observations(
        self, x: Tensor, y: Tensor, likelihood: Gaussian, noise: RowNoise | None = None
    ) -> Posterior:
        """A posterior that knows further rows, too; hyperparameters stay, and so does this one.

        Args:
            x (m, d), y (m,): the rows, standardised as the training data were.
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


def _check_number(posterior: Posterior, num: int, **_: Any) -> None:
    check_at_least(1, num=num)


def check_parts(model: Model) -> None:
    """Raise ConfigError where what the model holds as kernel, mean or likelihood is none."""
    for name in Hyperparameters._fields:
        part = getattr(model, name, None)
        if not isinstance(part, nn.Module) and (part is not None or name == "likelihood"):
            raise ConfigError(
                f"{class_name(model)}: {name}={part!r} is no {name} of gpx, such as "
                f"gpx.{EXAMPLES[name]}"
            )


def _check_training(model: Model, x: Tensor, y: Tensor, **_: Any) -> None:
    check_parts(model)
    check_inputs(model, x, model.num_inputs)
    check_targets(model, x, y, model.num_outputs)


class Model(DataSized, ABC):
    """One approximation of a Gaussian process.

    It has a likelihood, and one kernel, several or none: its constructor takes as ``kernel``,
    ``mean`` and ``likelihood`` what it needs of them, and ``hyperparameters`` says where they are.

    Attributes:
        likelihood: p(y | f).
    """

    likelihood: Likelihood
    hyperpriors: Priors | None = None
    """Of its hyperparameters, counted in where they are learned; None: none."""
    row_noise: RowNoise | None = None
    """What is known of the noise of each training row, of a model that takes it."""
    note = ""
    """What is worth saying of the last data-dependent choice; for the console."""

    streams: bool = False
    """Whether it is trained and conditioned on rows that are read from files a few at a time
    (``gpx.lazy_rows.LazyRows`` in the place of x and y)."""

    why_no_streams: str = "needs all training rows at once"
    """Of a model that is not, said of it in one sentence."""

    fixed_shapes: bool = False
    """Whether what a mini-batch objective asks of it is the same operations on the same arrays at
    every step, so that a GPU may replay them from a recording (``Objective.fixed_shapes``)."""

    kernel_of_inputs: bool = True
    """Whether its kernel compares inputs themselves, and not what a network makes of them."""

    certifiable: bool = False
    """Whether its posterior has a ``kernel`` and a ``mean``, exact inference with which it is or
    approximates, so that a certificate may say how far off it is."""

    rounds_argument = ""
    """Name of the argument that asks for more than one optimisation in a row."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, "condition", _check_training)

    @property
    def num_inputs(self) -> int | None:
        """Columns of the inputs it is made for; None where its kernel says what does not fit."""
        basis = getattr(self, "basis", None)
        return basis.num_inputs if isinstance(basis, Basis) else None

    @property
    def num_outputs(self) -> int:
        """Targets of a row that it models, y (n,) for one and (n, p) for p > 1. Default: one.

        A model that takes several says as many as its likelihood has.
        """
        return 1

    @property
    def num_rounds(self) -> int:
        """Optimisations in a row, at most; see ``next_round``."""
        return 1

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """Called when an optimisation has ended; may move the model. Default: nothing.

        Args:
            x (n, d), y (n,): all training data.
            loss: where it ended; infinite where it could not begin.
            generator: of this round, on the data's device.

        Returns:
            whether the model is at a new start, to be optimised again.
        """
        return False

    def rounds_state(self) -> dict[str, Any]:
        """What ``next_round`` remembers, for checkpoints."""
        return {}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """Restore ``rounds_state``."""

    def check_optimizer(self, optimizer: object) -> None:
        """Raise ConfigError, in one sentence, for an optimizer that does not train what was asked.

        Optimizers that need a certain model check that themselves. Default: any other will do.
        """

    def hyperparameters(self) -> Hyperparameters | None:
        """Kernel, mean function and likelihood, for whoever finds a start for them.

        Default: the attributes of these names. None: the model is not made of one of each, and what
        hyperparameters it has start where they are.
        """
        parts: list[Any] = [getattr(self, name, None) for name in Hyperparameters._fields]
        return None if None in parts else Hyperparameters(*parts)

    def check(self, x: Tensor) -> None:
        """Raise, in one sentence, where the model does not fit inputs x (n, d); cheap.

        Default: its kernel and its mean function are made for d inputs.

        Raises:
            GPXError: what does not fit.
        """
        parts = self.hyperparameters()
        if parts is not None:
            with torch.no_grad():
                parts.kernel.evaluate(x[:1], x[:1])
                parts.mean(x[:1])

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """Fix the options that were left to choose, given the training inputs x (n, d).

        Called once, before anything is written: what is chosen goes into the run's config, so that
        a resumed run and later predictions do the same. Default: nothing was left.

        Returns:
            option -> (value, reason in words).
        """
        return {}

    def know_noise(self, noise: RowNoise) -> None:
        """Take what is known of the noise of each training row; called after ``settle``.

        Default: refused.

        Args:
            noise: of all training rows in their order.

        Raises:
            ConfigError: the model has one noise variance for all rows.
        """
        raise ConfigError(
            f"{class_name(self)} has one noise variance for all rows, and noise= or weights= give "
            "each row its own: leave them out, or take model=ExactGP() with solver=cholesky, "
            "Vecchia(), SGPR(), EffectivePrior() or SubsetOfData()"
        )

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Data-dependent start of the variational state (inducing points ...). Default: nothing.

        Called once, after hyperparameters were initialised and before training.

        Args:
            x (n, d), y (n,): all training data, standardised, on the model's device.
            generator: on the data's device.
        """

    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """``initialise`` of a model in a run, whose start may take steps of its own.

        Args:
            x (n, d), y (n,), generator: of ``initialise``.
            watch: told of such steps, and knows those of the run that is gone on from. Default:
                there are none, and it is not asked.
        """
        self.initialise(x, y, generator=generator)

    @abstractmethod
    def condition(self, x: Tensor, y: Tensor) -> Posterior:
        """The posterior process given all training data.

        Models whose q is already a parameter ignore the data.

        Raises:
            ShapeError, DTypeError: x is no matrix (n, d) or y not (n,) (or (n, num_outputs)), or
                they are in another precision or on another device than the model (checked for
                every subclass).
        """

    @abstractmethod
    def new_posterior(self) -> Posterior:
        """A posterior of this model's parts and options that knows no data yet.

        ``load_state_dict`` of what ``condition`` gave makes it that posterior: the state alone says
        how many data, inducing points or basis functions there are.
        """

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by role: ``variational``, ``inducing``, ``hyperparameters``.

        ``network``: a backbone's, below the Gaussian process that is trained with it; ``touched``:
        variational ones of which a batch sees few rows, with sparse gradients.

        Optimisers give each role its own rate, schedule and freezing. Default: everything is a
        hyperparameter.
        """
        return {"hyperparameters": list(self.parameters())}

    def rate_factors(self) -> dict[str, float]:
        """Role -> factor of its learning rate, asked once where training starts. Default: none.

        For parameters whose unit follows from the hyperparameters, so that one rate suits all.
        """
        return {}
