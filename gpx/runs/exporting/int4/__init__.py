"""Export of models of discrete weights to integer arithmetic, for microcontrollers."""

from gpx.runs.exporting.int4.draw import int4_predictor
from gpx.runs.exporting.int4.predictor import Int4Prediction, Int4Predictor, Int4Size

__all__ = ["Int4Prediction", "Int4Predictor", "Int4Size", "int4_predictor"]
