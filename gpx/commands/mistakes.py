"""What the user can mend, told in one line; the exit status is 2."""

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
    """Print errors of gpx, of options and of files that leave this block, and exit."""
    try:
        yield
    except (GPXError, OmegaConfBaseException) as error:
        print_error(error)
    except OSError as error:
        print_error(said_of_file(error))
    else:
        return
    sys.exit(USAGE_ERROR)


def said_of_file(error: OSError) -> str:
    """Which file, and what is wrong: a full disk, a folder that cannot be made."""
    return f"{error.filename or 'file'}: {error.strerror or error}"
