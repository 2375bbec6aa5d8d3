"""gpx: Gaussian processes that do not fit (too many points, too many basis functions, or both)."""

__version__ = "0.1.0"
