"""One-line messages for mistakes of the user, with exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf.errors import OmegaConfBaseException

from gpx.commands import USAGE_ERROR
from gpx.errors import GPXError
from gpx.runs.watching.console import print_error


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Print errors of gpx, of options and of files in one line, and exit with status 2."""
    try:
        yield
    except (GPXError, OmegaConfBaseException) as error:
        print_error(error)
    except OSError as error:
        print_error(describe_file_error(error))
    else:
        return
    sys.exit(USAGE_ERROR)


def describe_file_error(error: OSError) -> str:
    """The file and what is wrong, such as a full disk or a missing permission."""
    return f"{error.filename or 'file'}: {error.strerror or error}"
