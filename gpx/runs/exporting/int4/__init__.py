"""A trained model of discrete weights as a predictor in integers, for machines of few bytes."""

from gpx.runs.exporting.int4.draw import int4_predictor
from gpx.runs.exporting.int4.predictor import Int4Prediction, Int4Predictor, Int4Size

__all__ = ["Int4Prediction", "Int4Predictor", "Int4Size", "int4_predictor"]
