"""Runs: prepared, trained, evaluated and written; read back, watched, pictured and exported."""

from gpx.runs.exporting.export import export
from gpx.runs.exporting.int4 import Int4Predictor
from gpx.runs.fit import Fitted, fit
from gpx.runs.folder import RunFolder
from gpx.runs.left_out import LeftOutRows
from gpx.runs.loading import load
from gpx.runs.prediction import Prediction
from gpx.runs.predictor import Predictor
from gpx.runs.run import resume, run

__all__ = [
    "Fitted",
    "Int4Predictor",
    "LeftOutRows",
    "Prediction",
    "Predictor",
    "RunFolder",
    "export",
    "fit",
    "load",
    "resume",
    "run",
]
