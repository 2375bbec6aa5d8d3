"""Evidence objectives, one per file."""

from gpx.objectives.base import Evidence, Objective

__all__ = ["Evidence", "Objective"]
