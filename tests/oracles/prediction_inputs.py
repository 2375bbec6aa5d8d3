"""Inputs of a file to predict for, read as a run that was trained on numbers alone reads them."""

from gpx.data import read_rows
from gpx.data.columns.coding import Coding


def read_inputs(path, names):
    """Inputs (n, d) with the columns ``names`` of training."""
    coding = Coding.of_numbers(names)
    return coding(read_rows(path, coding).frame)
