"""Data sets by name: published ones, and simulated ones."""

from gpx.data.sets.extra import ExtraTable
from gpx.data.sets.originals import OriginalTable
from gpx.data.sets.robot_arm import RobotArm
from gpx.data.sets.toy import Toy1D
from gpx.data.sets.uci import UCI

__all__ = ["UCI", "ExtraTable", "OriginalTable", "RobotArm", "Toy1D"]
