"""Numbers of the first sheet of an Excel workbook (.xlsx), also one that is packed into a zip."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.errors import DataError

SHEET = "xl/worksheets/sheet1.xml"
CELL = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}c"
VALUE = CELL[:-1] + "v"
ROW = CELL[:-1] + "row"


def first_sheet(path: Path) -> Floats:
    """Numbers of the first sheet without its first row, the names of the columns.

    Args:
        path: of the workbook, or of a zip file with one workbook in any of its folders.

    Raises:
        DataError: the file is neither, or a cell does not hold a number.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            inner = [name for name in packed.namelist() if name.endswith(".xlsx")]
            if not inner:
                return _numbers(packed)
            with zipfile.ZipFile(io.BytesIO(packed.read(inner[0]))) as workbook:
                return _numbers(workbook)
    except (
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        ValueError,
        ElementTree.ParseError,
    ) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and fetch it again") from error


def _numbers(workbook: zipfile.ZipFile) -> Floats:
    rows = list(ElementTree.fromstring(workbook.read(SHEET)).iter(ROW))[1:]
    return np.array([[_number(cell) for cell in row.iter(CELL)] for row in rows], dtype=np.float64)


def _number(cell: ElementTree.Element) -> float:
    """The number in a cell; texts (t="s") are indices into another part of the workbook."""
    if cell.get("t", "n") != "n":
        raise ValueError(f"cell {cell.get('r')} holds no number")
    return float(cell.findtext(VALUE) or "")
