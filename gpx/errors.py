"""All errors that gpx raises on purpose.

A message says what was found, what was expected, the likely cause and one thing to try.
``train.py`` and ``predict.py`` print these as one line without a traceback; any other exception is
a bug.
"""

from __future__ import annotations


class GPXError(Exception):
    """Base of all errors that gpx raises on purpose."""


class ShapeError(GPXError, ValueError):
    """A tensor has the wrong shape."""


class IndexOutOfRange(ShapeError, IndexError):
    """An index exceeds its dimension."""


class DTypeError(GPXError, TypeError):
    """A tensor has the wrong dtype or lives on the wrong device."""


class NotPositiveDefinite(GPXError, ArithmeticError):
    """A Cholesky factorisation failed with every permitted jitter."""


class DidNotConverge(GPXError, ArithmeticError):
    """An iterative solve stopped before it met its criterion."""


class ConfigError(GPXError, ValueError):
    """Options do not exist, contradict each other or do not fit the model."""


class NoSpectrum(ConfigError):
    """A kernel has no spectral representation, as random Fourier features need."""


class NotAvailable(GPXError, NotImplementedError):
    """An operation is undefined or not implemented for this object."""


class DataError(GPXError, ValueError):
    """A data set is missing, malformed or too small."""


class CheckpointError(GPXError, RuntimeError):
    """A checkpoint or run folder is missing, truncated or not from gpx."""


class BackendUnavailable(GPXError, RuntimeError):
    """A requested device or optional package is not available."""


class OutOfMemory(GPXError, MemoryError):
    """A computation that cannot be split further needs more memory than the device has."""


class ProcessLost(GPXError, RuntimeError):
    """Processes of one run cannot reach each other: one of them has ended."""


class WriteError(GPXError, OSError):
    """A file cannot be written: the disk is full or the folder not writable."""


def class_name(module: object) -> str:
    """Name of a module's class as in its source.

    torch creates another class, with a prefix, for a module with constrained parameters.
    """
    return type(module).__name__.removeprefix("Parametrized")
