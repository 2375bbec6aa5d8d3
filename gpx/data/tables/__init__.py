"""Tables in files: data to train on, inputs to predict, and predictions."""

from gpx.data.tables.npz_file import NPZFile
from gpx.data.tables.parquet_file import ParquetFile
from gpx.data.tables.prediction_input import read_rows
from gpx.data.tables.predictions import write_predictions, write_table
from gpx.data.tables.table_file import CSVFile

__all__ = [
    "CSVFile",
    "NPZFile",
    "ParquetFile",
    "read_rows",
    "write_predictions",
    "write_table",
]
