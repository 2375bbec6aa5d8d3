"""Data that do not fit in memory: rows of files, read as batches ask for them."""

from gpx.data.stream.source import Stream

__all__ = ["Stream"]
