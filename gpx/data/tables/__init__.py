"""Tables of your own in files, and the tables that are predicted for."""

from gpx.data.tables.npz_file import CSVFile, NPZFile
from gpx.data.tables.parquet_file import ParquetFile
from gpx.data.tables.prediction_input import read_inputs, read_rows, write_predictions, write_table

__all__ = [
    "CSVFile",
    "NPZFile",
    "ParquetFile",
    "read_inputs",
    "read_rows",
    "write_predictions",
    "write_table",
]
