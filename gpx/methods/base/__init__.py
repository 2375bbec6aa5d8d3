"""The contracts of models, posteriors, objectives and optimisers that make their own steps."""

from gpx.methods.base.model import Hyperparameters, Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.base.posterior import Marginals, Posterior

__all__ = [
    "Evidence",
    "Hyperparameters",
    "Marginals",
    "Model",
    "Objective",
    "OwnSteps",
    "Posterior",
]
