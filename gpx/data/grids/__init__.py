"""Values on Cartesian grids, with or without gaps."""

from gpx.data.grids.file import ExtraGrid, GridFile
from gpx.data.grids.frames import FrameFolder
from gpx.data.grids.stress import GridStress
from gpx.data.grids.values import GridSource, GridValues

__all__ = ["ExtraGrid", "FrameFolder", "GridFile", "GridSource", "GridStress", "GridValues"]
