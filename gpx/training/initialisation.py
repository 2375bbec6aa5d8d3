"""Where hyperparameters start: at an exact GP fitted to a subset, or at the config's constants."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.constraints import at_their_floor, lower_limits
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian
from gpx.models import ExactGP, Model
from gpx.objectives import ExactMLL
from gpx.training.lbfgsb import LBFGSB

Say = Callable[[str], None]


class ConstantInitialisation:
    """Hyperparameters stay where the config put them (``init=constants``)."""

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """Do nothing."""


class SubsetInitialisation:
    """Type-II maximum likelihood of an exact GP on random training rows (``init=subset``).

    The model's kernel, mean and noise variance take the fitted values. With a non-Gaussian
    likelihood there is no exact evidence and the constants stay.

    Args:
        num_points: rows drawn; cost is cubic in it.
        max_evaluations: of the log marginal likelihood under L-BFGS-B.

    Raises:
        ConfigError: fewer than 2 points or 1 evaluation.

    Source: Evans and Nair 2020 (QSGP), the common initialisation of its benchmarks.
    """

    def __init__(self, num_points: int = 1000, max_evaluations: int = 100) -> None:
        if num_points < 2 or max_evaluations < 1:
            raise ConfigError(
                f"init.num_points={num_points} must be at least 2 and init.max_evaluations="
                f"{max_evaluations} at least 1; init=constants skips the fit"
            )
        self.num_points = num_points
        self.max_evaluations = max_evaluations

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """Fit the subset in float64 and copy the hyperparameters into ``model``.

        Args:
            model: to initialise, in place.
            x (n, d), y (n,): all training data.
            generator: draws the rows.
            say: takes progress lines.
        """
        if not isinstance(model.likelihood, Gaussian):
            say(f"init: {type(model.likelihood).__name__} likelihood, starting from constants")
            return
        num = min(self.num_points, x.shape[0])
        rows = torch.randperm(x.shape[0], generator=generator, device=x.device)[:num]
        subset_x, subset_y = x[rows].double(), y[rows].double()
        exact = ExactGP(
            kernel=copy.deepcopy(model.kernel).double(),
            mean=copy.deepcopy(model.mean).double(),
            likelihood=copy.deepcopy(model.likelihood).double(),
        )
        objective = ExactMLL()

        def loss() -> Tensor:
            return objective(exact, subset_x, subset_y)

        def after_evaluation(count: int, value: float, replayed: bool) -> None:
            if count == 1 or count % 20 == 0:
                say(
                    f"init: exact GP on {num} points, evaluation {count}, "
                    f"evidence/point {-value:+.4f}"
                )

        solver = LBFGSB(ftol=1e-7, gtol=1e-4)
        parameters = list(exact.parameters())
        if not parameters:
            return
        limits = lower_limits(exact, parameters)
        solver.minimise(parameters, loss, self.max_evaluations, after_evaluation, lower=limits)
        for name in at_their_floor(exact, parameters):
            say(f"init: {name} of {num} points is at its floor, where it is kept")
        for source, target in (
            (exact.kernel, model.kernel),
            (exact.mean, model.mean),
            (exact.likelihood, model.likelihood),
        ):
            _copy_parameters(source, target)


def _copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Same architecture, possibly another dtype: raw tensors carry over."""
    state = {name: value.detach().clone() for name, value in source.state_dict().items()}
    target.load_state_dict(state)  # copies in place and casts
