"""Several targets with one joint covariance, some of them missing."""

from gpx.inference.several_targets.log_density import (
    OutputsGradient,
    TargetsCovariance,
    targets_log_density,
)
from gpx.inference.several_targets.observed import ObservedTargets, Piece
from gpx.inference.several_targets.posterior import (
    TargetsPosterior,
    require_no_infinity,
    target_cholesky,
)
from gpx.inference.several_targets.system import FactoredTargets

__all__ = [
    "FactoredTargets",
    "ObservedTargets",
    "OutputsGradient",
    "Piece",
    "TargetsCovariance",
    "TargetsPosterior",
    "require_no_infinity",
    "target_cholesky",
    "targets_log_density",
]
