"""Data sets: sources, splits, standardisation."""

from gpx.data.dataset import Dataset, load
from gpx.data.extra import ExtraTable
from gpx.data.fields import Fields
from gpx.data.file import CSVFile, NPZFile
from gpx.data.glyphs import Glyphs
from gpx.data.grid_file import ExtraGrid, GridFile
from gpx.data.grid_frames import FrameFolder
from gpx.data.grid_stress import GridStress
from gpx.data.grid_values import GridSource, GridValues
from gpx.data.images import MNIST, Digits, ImageFiles, ImageSource
from gpx.data.labels import Task
from gpx.data.mnist import MNISTParity
from gpx.data.parquet_file import ParquetFile
from gpx.data.prediction_input import read_inputs, read_rows, write_predictions, write_table
from gpx.data.robot_arm import RobotArm
from gpx.data.source import DataSource
from gpx.data.standardiser import Standardiser
from gpx.data.stream import Stream
from gpx.data.table import Table
from gpx.data.toy import Toy1D
from gpx.data.uci import UCI

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
    "ParquetFile",
    "RobotArm",
    "Standardiser",
    "Stream",
    "Table",
    "Task",
    "Toy1D",
    "load",
    "read_inputs",
    "read_rows",
    "write_predictions",
    "write_table",
]
