"""Data that do not fit in memory: rows in files, read in batches."""

from gpx.data.stream.source import Stream

__all__ = ["Stream"]
