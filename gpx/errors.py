"""Every error gpx raises on purpose.

A message says what was found, what was expected, the likely cause and one thing to try.
``train.py`` and ``predict.py`` print these as one line without a traceback; anything else that
escapes is a bug.
"""

from __future__ import annotations


class GPXError(Exception):
    """Base of all errors that gpx raises on purpose."""


class ShapeError(GPXError, ValueError):
    """A tensor has the wrong shape."""


class IndexOutOfRange(ShapeError, IndexError):
    """An index lies beyond the dimension it is for."""


class DTypeError(GPXError, TypeError):
    """A tensor has the wrong dtype or lives on the wrong device."""


class NotPositiveDefinite(GPXError, ArithmeticError):
    """A Cholesky factorisation failed at every permitted jitter."""


class DidNotConverge(GPXError, ArithmeticError):
    """An iterative solve stopped before its criterion was met."""


class ConfigError(GPXError, ValueError):
    """Options do not exist, contradict each other or do not fit the model."""


class NoSpectrum(ConfigError):
    """A kernel has no spectral representation, such as random Fourier features need."""


class NotAvailable(GPXError, NotImplementedError):
    """An operation that makes no sense, or has no form, for this object."""


class DataError(GPXError, ValueError):
    """A data set is missing, malformed or too small for what was asked."""


class CheckpointError(GPXError, RuntimeError):
    """A checkpoint or run folder is missing, truncated or foreign."""


class BackendUnavailable(GPXError, RuntimeError):
    """A device or optional package was asked for and is not there."""


class OutOfMemory(GPXError, MemoryError):
    """The device has less memory than a computation needs that cannot be cut any further."""


class ProcessLost(GPXError, RuntimeError):
    """Processes that share a run cannot reach one another: one of them has ended."""


class WriteError(GPXError, OSError):
    """A file cannot be written: the disk is full, or the folder is not to be written to."""


def class_name(module: object) -> str:
    """Name of the class of a module, for people: as it is written in its source.

    torch makes a class of its own, of another name, for a module with constrained parameters.
    """
    return type(module).__name__.removeprefix("Parametrized")
