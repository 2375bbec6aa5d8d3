"""The contract of models: kernel (or basis), mean, likelihood and variational state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis
from gpx.data_sized import DataSized
from gpx.errors import ConfigError, NotAvailable, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.gradients import leave_inference_mode
from gpx.methods.base.model_checks import (
    check_condition,
    check_start,
    check_variance,
    why_rows_are_refused,
)
from gpx.methods.base.posterior import Posterior
from gpx.methods.base.start import StartWatch
from gpx.priors import Priors
from gpx.tensor_checks import check_num_inputs, guard


class Hyperparameters(NamedTuple):
    """The modules of a model that hold the hyperparameters of its Gaussian process."""

    kernel: Kernel
    mean: Mean
    likelihood: Likelihood


class Model(DataSized, ABC):
    """One approximation of a Gaussian process.

    The constructor takes ``likelihood`` and, where the model has them, ``kernel`` and ``mean``;
    ``hyperparameters`` returns these modules.

    Attributes:
        likelihood: p(y | f).
    """

    likelihood: Likelihood
    hyperpriors: Priors | None = None
    """Priors of the hyperparameters, added to the objective in training; None: no priors."""
    row_noise: RowNoise | None = None
    """Known noise variance or weight of each training row; None: nothing is known."""
    takes_missing_targets: bool = False
    """Whether single targets of a row with several may be missing (NaN)."""
    observes_derivatives: bool = False
    """Whether targets after the first are derivatives of the first by inputs, which
    ``with_respect_to`` names."""
    takes_row_noise: bool = False
    """Whether it takes a known noise variance or a weight for each row (``know_noise``)."""
    takes_cell_noise: bool = False
    """Whether known noise variances may be those of p targets, (n,) for all of them or (n, p)."""
    condition_uses_data: bool = True
    """Whether ``condition`` depends on the data. If not, their values are not looked at, for which
    a GPU would wait."""
    note = ""
    """Console message about the last choice the model made from the data; empty: no message."""

    streams: bool = False
    """Whether x and y may be ``gpx.lazy_rows.LazyRows``, which are read from files in batches."""

    why_no_streams: str = "needs all training rows at once"
    """Why ``streams`` is false, as the predicate of a sentence about the model."""

    fixed_shapes: bool = False
    """Whether a mini-batch step runs the same operations on the same arrays every time, so that a
    CUDA graph can replay it (``Objective.fixed_shapes``)."""

    kernel_of_inputs: bool = True
    """Whether its kernel is a function of the inputs, not of features that a network computes."""

    certifiable: bool = False
    """Whether its posterior is, or approximates, the exact posterior under its own ``kernel`` and
    ``mean``, so that a certificate can bound the distance between the two."""

    starts_by_laplace: bool = False
    """Whether hyperparameters that Laplace's approximation found on some of the rows are a good
    start. It is used where the likelihood is one of classes or counts that has one
    (``gpx.training.SubsetInitialisation``)."""

    _num_inputs: int | None = None
    """``num_inputs`` of models without a basis that know it."""

    rounds_argument = ""
    """Name of the constructor argument that sets the number of further optimisations."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method, check in (("initialise", check_start), ("condition", check_condition)):
            guard(cls, method, check)
            leave_inference_mode(cls, method)

    @property
    def num_inputs(self) -> int | None:
        """Input columns it expects; None: only the kernel checks them."""
        basis = getattr(self, "basis", None)
        return basis.num_inputs if isinstance(basis, Basis) else self._num_inputs

    @property
    def num_outputs(self) -> int:
        """p, the number of targets of a row: y is (n,) for p = 1 and (n, p) for more. Default: 1.

        Models of several targets return that of their likelihood.
        """
        return 1

    @property
    def num_rounds(self) -> int:
        """Most optimisations one after the other; see ``next_round``."""
        return 1

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """Called when an optimisation has ended; may set a new start. Default: no further round.

        Args:
            x (n, d), y (n,): all training data.
            loss: final loss of the optimisation; infinite if it could not begin.
            generator: for this round, on the data's device.

        Returns:
            True if the parameters were set to a new start, from which to optimise again.
        """
        return False

    def keep_best(self, loss: float) -> None:
        """Go back to the best of earlier rounds if ``loss``, of an unfinished round, is above its.

        Called where time ends training within a round. Default: nothing.
        """

    def rounds_state(self) -> dict[str, Any]:
        """State that ``next_round`` keeps between rounds, for checkpoints."""
        return {}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """Restore ``rounds_state``."""

    def check_optimizer(self, optimizer: object) -> None:
        """Raise ConfigError if ``optimizer`` cannot train this model with its options.

        Optimizers that are made for certain models check the model themselves. Default: no check.
        """

    def hyperparameters(self) -> Hyperparameters | None:
        """Kernel, mean function and likelihood, for the initialisation of hyperparameters.

        Default: the attributes of these names. None: the model does not have exactly one of each,
        and its hyperparameters are not initialised from the data.
        """
        parts: list[Any] = [getattr(self, name, None) for name in Hyperparameters._fields]
        return None if None in parts else Hyperparameters(*parts)

    def check(self, x: Tensor) -> None:
        """Check cheaply that the model takes inputs x (n, d).

        Default: compares ``num_inputs``, and evaluates the kernel and the mean function at the
        first rows.

        Raises:
            GPXError: it does not, or ``variance`` of the kernel is not the diagonal of its
                ``covariance``.
        """
        check_num_inputs(self.num_inputs, x)
        parts = self.hyperparameters()
        if parts is not None:
            with torch.no_grad():
                check_variance(parts.kernel, x[:3])
                parts.mean(x[:3])

    def know_test_inputs(self, x: Tensor) -> bool:
        """Pass the inputs x (t, d) of the test set to the parts that ask for them.

        Called before ``settle``. A part asks by an attribute ``asks_for_test_inputs`` that is true
        and is given them by its method ``know_test_inputs``.

        Returns:
            whether a part asked.
        """
        asking: list[Any] = [p for p in self.modules() if getattr(p, "asks_for_test_inputs", False)]
        for part in asking:
            part.know_test_inputs(x)
        return bool(asking)

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """Choose the values of options left to the model ("auto"), given the inputs x (n, d).

        Called once, before the run's config is written. The choices go into that config, so that
        resumed runs and predictions use the same. Default: no choices.

        Returns:
            option -> (value, reason in words).
        """
        return {}

    def know_noise(self, noise: RowNoise | Tensor) -> None:
        """Set the known noise variances or weights of the training rows; called after ``settle``.

        Args:
            noise: of all training rows, in their order; moved to the model's device. A tensor (n,)
                of variances, beside which the likelihood learns one of all rows, or a ``RowNoise``:
                ``RowNoise(variances, torch.zeros_like(variances))`` learns none. Models with
                ``takes_cell_noise`` also take (n, p), those of every cell of p targets.

        Raises:
            ConfigError: the model has one noise variance for all rows (``takes_row_noise``), its
                likelihood takes no known noise, or variances are no vector of numbers, 0 or more.
        """
        if not isinstance(noise, RowNoise):
            noise = RowNoise.of_variances(noise)
        if not self.takes_row_noise:
            raise ConfigError(
                f"{class_name(self)} {why_rows_are_refused(noise)}, or take "
                + (
                    "model=ExactGP() with solver=cholesky, SVGP(), Vecchia(), SGPR(), "
                    "EffectivePrior(prior=fitc) or SubsetOfData()"
                    if isinstance(self.likelihood, Gaussian)
                    else "model=SVGP(), which takes weights of rows under any likelihood"
                )
            )
        if not self.takes_cell_noise:
            self.likelihood.require_row_noise(noise)
            if noise.known.ndim > 1:
                raise ConfigError(
                    f"{class_name(self)} takes the known noise variance of every row, (n,), got a "
                    f"tensor {tuple(noise.known.shape)}; model=IndependentGP() and CoregionalGP() "
                    "take those of every cell of several targets"
                )
        elif noise.known.ndim > 1 and noise.known.shape[1] != self.num_outputs:
            raise ConfigError(
                f"known noise variances have {noise.known.shape[1]} columns and there are "
                f"{self.num_outputs} targets: give one column for each, or a vector for all"
            )
        own = next(self.parameters(), None)
        self.row_noise = noise if own is None else noise.on(own.device)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        found = super()._apply(fn, recurse)
        if self.row_noise is not None:  # no buffer, as it is no part of the model's state
            self.row_noise = self.row_noise.on(fn(self.row_noise.known).device)
        return found

    def start_targets(self, y: Tensor) -> Tensor | None:
        """Targets that independent exact processes are fitted to, for a start of hyperparameters.

        Args:
            y (n,) or (n, p): all training targets.

        Returns:
            a tensor of the same shape, NaN where a target is left out; None: no such fit. Default:
            all of them.
        """
        return y

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Initialise the variational state (inducing points ...) from the data. Default: nothing.

        Called once, after the hyperparameters were initialised and before training.

        Args:
            x (n, d), y (n,): all training data, standardised, on the model's device.
            generator: on the data's device.
        """

    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """``initialise`` within a run, for models whose initialisation takes optimisation steps.

        Args:
            x (n, d), y (n,), generator: as for ``initialise``.
            watch: reports such steps, and restores those of a resumed run. The default ignores it.
        """
        self.initialise(x, y, generator=generator)

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raises NotAvailable: a model is conditioned, not called."""
        raise NotAvailable(
            f"{class_name(self)} is not called: its evidence is objective.evidence(model, x, y), "
            "its posterior model.condition(x, y), which has predict(x_new) of the function and "
            "predictive(x_new, model.likelihood) of new observations"
        )

    @abstractmethod
    def condition(self, x: Tensor, y: Tensor) -> Posterior:
        """The posterior process given all training data.

        Models that hold q(u) as parameters ignore the data.

        Raises:
            ShapeError, DTypeError: x is no matrix (n, d) or y not (n,) (or (n, num_outputs)), or
                they are in another precision or on another device than the model (checked for
                every subclass).
            DataError: a target of y (n,) is not finite, or one of y (n, p) missing (NaN) that the
                model cannot do without (checked for every subclass).
            ConfigError: the model knows the noise of another number of rows (checked for every
                subclass).
        """

    @abstractmethod
    def new_posterior(self) -> Posterior:
        """An empty posterior of this model's parts and options, to load a state into.

        ``load_state_dict`` with the state of a conditioned posterior restores that posterior; the
        sizes (data, inducing points, basis functions) are taken from the state.
        """

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by role: ``variational``, ``inducing``, ``hyperparameters``.

        Two further roles: ``network``, the weights of a network below the Gaussian process, and
        ``touched``, variational parameters with sparse gradients, of which a batch uses few rows.

        Optimisers give each role its own rate, schedule and freezing. Default: all parameters are
        hyperparameters.
        """
        return {"hyperparameters": list(self.parameters())}

    def rate_factors(self) -> dict[str, float]:
        """Role -> factor of its learning rate, read once when training starts. Default: no factors.

        For parameters whose scale depends on the hyperparameters.
        """
        return {}
