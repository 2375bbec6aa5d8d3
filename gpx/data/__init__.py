"""Data sets: sources, splits and standardisation."""

from gpx.data.dataset import Dataset
from gpx.data.grids import ExtraGrid, FrameFolder, GridFile, GridSource, GridStress, GridValues
from gpx.data.images import MNIST, Digits, Fields, Glyphs, ImageFiles, ImageSource, MNISTParity
from gpx.data.labels import Task
from gpx.data.loading import load
from gpx.data.sets import UCI, ExtraTable, OriginalTable, RobotArm, Toy1D
from gpx.data.source import DataSource
from gpx.data.standardiser import Standardiser
from gpx.data.stream import Stream
from gpx.data.table import Table
from gpx.data.tables import (
    CSVFile,
    NPZFile,
    ParquetFile,
    read_rows,
    write_predictions,
    write_table,
)

__all__ = [
    "MNIST",
    "UCI",
    "CSVFile",
    "DataSource",
    "Dataset",
    "Digits",
    "ExtraGrid",
    "ExtraTable",
    "Fields",
    "FrameFolder",
    "Glyphs",
    "GridFile",
    "GridSource",
    "GridStress",
    "GridValues",
    "ImageFiles",
    "ImageSource",
    "MNISTParity",
    "NPZFile",
    "OriginalTable",
    "ParquetFile",
    "RobotArm",
    "Standardiser",
    "Stream",
    "Table",
    "Task",
    "Toy1D",
    "load",
    "read_rows",
    "write_predictions",
    "write_table",
]
