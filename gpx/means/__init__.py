"""Prior mean functions."""

from gpx.means.base import Mean
from gpx.means.constant import Constant
from gpx.means.linear import Linear
from gpx.means.zero import Zero

__all__ = ["Constant", "Linear", "Mean", "Zero"]
