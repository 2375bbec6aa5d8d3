"""What a model is: kernel (or basis), mean, likelihood, variational state; it gives a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis
from gpx.data_sized import DataSized
from gpx.errors import ConfigError, DataError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.posterior import Posterior
from gpx.methods.base.start import StartWatch
from gpx.priors import Priors
from gpx.tensor_checks import check_inputs, check_targets, guard


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
"""An example of each part, for error messages."""


def refused_of_rows(noise: RowNoise) -> str:
    """Why a model refuses known noise or weights of rows: the middle of an error message."""
    if bool((noise.known > 0.0).any()):
        return (
            "has one noise variance for all rows, and noise= or weights= give each row its own: "
            "leave them out"
        )
    return "counts every row once, and weights= say how many each one stands for: leave them out"


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
    if isinstance(y, Tensor) and y.ndim == 2 and not model.takes_missing_targets:
        lacking = y.isnan()
        if bool(lacking.any()):
            raise DataError(
                f"{class_name(model)}: {int(lacking.sum())} of {y.numel()} targets are missing "
                "(NaN); leave these rows out, or take model=CoregionalGP(), or model=SVGP() with "
                "GaussianOutputs() or MixedOutputs(), which leave out the cells alone"
            )


class Model(DataSized, ABC):
    """One approximation of a Gaussian process.

    It has a likelihood, and one kernel, several or none: its constructor takes as ``kernel``,
    ``mean`` and ``likelihood`` what it needs of them, and ``hyperparameters`` says where they are.

    Attributes:
        likelihood: p(y | f).
    """

    likelihood: Likelihood
    hyperpriors: Priors | None = None
    """Priors of its hyperparameters, part of the objective while these are learned; None: none."""
    row_noise: RowNoise | None = None
    """Known noise variance or weight of each training row; None where there is none."""
    takes_missing_targets: bool = False
    """Whether some of several targets of a row may be missing, NaN."""
    takes_row_noise: bool = False
    """Whether noise may be known, and rows weighted, row by row."""
    note = ""
    """Console message about the last choice that the model made from the data; empty: none."""

    streams: bool = False
    """Whether it is trained and conditioned on rows that are read from files a few at a time
    (``gpx.lazy_rows.LazyRows`` in the place of x and y)."""

    why_no_streams: str = "needs all training rows at once"
    """Where ``streams`` is false: the reason, as the predicate of a sentence about the model."""

    fixed_shapes: bool = False
    """Whether what a mini-batch objective asks of it is the same operations on the same arrays at
    every step, so that a GPU may replay them from a recording (``Objective.fixed_shapes``)."""

    kernel_of_inputs: bool = True
    """Whether its kernel compares inputs themselves, and not what a network makes of them."""

    certifiable: bool = False
    """Whether its posterior is, or approximates, exact inference with its own ``kernel`` and
    ``mean``, so that a certificate can bound its distance from exact inference."""

    rounds_argument = ""
    """Name of the argument that asks for more than one optimisation in a row."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in ("initialise", "condition"):
            guard(cls, method, _check_training)

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

        Args:
            noise: of all training rows in their order.

        Raises:
            ConfigError: the model has one noise variance for all rows (``takes_row_noise``), or its
                likelihood takes no known noise.
        """
        if not self.takes_row_noise:
            raise ConfigError(
                f"{class_name(self)} {refused_of_rows(noise)}, or take "
                + (
                    "model=ExactGP() with solver=cholesky, SVGP(), Vecchia(), SGPR(), "
                    "EffectivePrior(prior=fitc) or SubsetOfData()"
                    if isinstance(self.likelihood, Gaussian)
                    else "model=SVGP(), which takes weights of rows under any likelihood"
                )
            )
        self.likelihood.require_row_noise(noise)
        self.row_noise = noise

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
