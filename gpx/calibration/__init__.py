"""Recalibration of the predictions of any model, fitted on held-out rows."""

from gpx.calibration.base import Recalibration, held_out_rows, require_classes
from gpx.calibration.classes import Isotonic, Platt, Temperature
from gpx.calibration.intervals import Conformal, Variance

__all__ = [
    "Conformal",
    "Isotonic",
    "Platt",
    "Recalibration",
    "Temperature",
    "Variance",
    "held_out_rows",
    "require_classes",
]
