"""Objectives in closed form need Gaussian noise."""

from __future__ import annotations

from gpx.errors import ConfigError
from gpx.likelihoods.gaussian import Gaussian
from gpx.models.base import Model
from gpx.objectives.base import Objective


def require_gaussian(objective: Objective, model: Model) -> None:
    """Raise ConfigError, in one sentence, unless the model's likelihood is Gaussian."""
    if not isinstance(model.likelihood, Gaussian):
        # torch renames the class of a module that has parametrised attributes
        found = type(model.likelihood).__name__.removeprefix("Parametrized")
        raise ConfigError(
            f"objective {type(objective).__name__} needs the Gaussian likelihood, got {found}; "
            "use likelihood=gaussian or approx=svgp"
        )
